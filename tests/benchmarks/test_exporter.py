import http.server
import json
import subprocess
import sys
import threading

import pytest

from benchmarks.exporter import IDLE, MANY, RATES, USUAL, Window, costs_of, to_document, to_text

STEPS = (0.1,) * 10


def window(rate, rank_cpu, conductor_cpu, num_answers=0, steps=STEPS):
    return Window(rate, 1.0, num_answers, steps, rank_cpu, conductor_cpu)


WINDOWS = [
    window(IDLE, (1.0, 2.0), 0.5),
    window(USUAL, (1.0, 2.0), 0.5, 3, (0.1, 0.11)),
    window(IDLE, (1.0, 2.0), 0.5),
    # Half as many steps, and 30 answers of each of three endpoints.
    window(MANY, (0.53, 1.06), 0.31, 90, STEPS[:5]),
]


@pytest.mark.unit
def test_what_steps_do_not_explain_the_answers_cost():
    costs = costs_of(WINDOWS)
    assert costs.rank_answer.values == pytest.approx((0.001, 0.002))
    assert costs.conductor_answer.values == pytest.approx((0.002,))
    assert costs.step_seconds[IDLE].values == pytest.approx((0.1, 0.1))
    assert costs.step_seconds[USUAL].values == pytest.approx((0.105,))


@pytest.mark.unit
def test_the_share_is_that_of_one_answer_a_second():
    costs = costs_of(WINDOWS)
    document = json.loads(json.dumps(to_document(costs, WINDOWS), allow_nan=False))
    assert document["rank_share_at_one_a_second_ratio"] == pytest.approx(0.0015)
    assert document["num_answers"] == 93
    assert "0.150% of a rank's time" in to_text(costs, 1.0)


@pytest.mark.unit
@pytest.mark.parametrize("windows", [[], WINDOWS[:1], WINDOWS[3:], [window(IDLE, (1.0,), 1.0, steps=())]])
def test_too_few_windows_tell_nothing(windows):
    costs = costs_of(windows)
    assert costs.rank_answer.values == ()
    assert to_document(costs, windows)["rank_share_at_one_a_second_ratio"] is None
    assert "not measured" in to_text(costs, 1.0)


@pytest.mark.unit
def test_windows_without_readers_stand_beside_each_of_the_others():
    assert [RATES[index - 1] for index, rate in enumerate(RATES) if rate] == [IDLE, IDLE]


class Counting(http.server.BaseHTTPRequestHandler):
    num_requests = 0

    def do_GET(self):
        type(self).num_requests += 1
        assert self.headers["Accept"].startswith("application/openmetrics-text")
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"# EOF\n")

    def log_message(self, *_):
        pass


@pytest.mark.unit
def test_the_reader_reads_as_it_is_told_and_counts_what_it_was_answered():
    with (
        http.server.HTTPServer(("127.0.0.1", 0), Counting) as server,
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks._scraper"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as reader,
    ):
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            address = f"127.0.0.1:{server.server_port}"
            reader.stdin.write(f"0 {address}\n")
            reader.stdin.flush()
            assert reader.stdout.readline() == "0\n"
            reader.stdin.write(f"1000 {address} {address}\n")
            reader.stdin.flush()
            assert reader.stdout.readline() == "0\n"
            while Counting.num_requests < 20:
                thread.join(0.01)
            reader.stdin.write("0\n")
            reader.stdin.flush()
            assert 20 <= int(reader.stdout.readline()) <= Counting.num_requests
        finally:
            reader.stdin.close()
            server.shutdown()
            thread.join()
