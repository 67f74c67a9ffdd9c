"""Experiment files and how they can be damaged: by bytes, by words, by values, and by what only an attacker writes."""

import json
from random import Random

import yaml

SOUND = (
    """\
name: everything
seed: 7
job: {model: llama-tiny, nodes: 4, gpus_per_node: 2, data_parallel: 4, pipeline: 2, steps: 300, strategy: mecefo,
  nodes_per_rack: 2, data: text.txt, checkpoint: {every_steps: 50, keep: 2}, approximation: {rank: 16}}
limits: {max_nodes: 2, max_ranks: 6, min_healthy: 25%}
faults:
  - kind: kill-node
    on: random:1
    at: {step: 100, phase: backward}
    repair: 60steps
  - {kind: kill-process, on: "stage=1,replica=0", rate: 1/100steps, count: 3, within: 200steps, repair: 20steps}
  - {kind: kill-process, on: rank=1+5, at: "step=250,phase=regroup", retrigger: every-attempt}
  - {kind: kill-process, on: role=coordinator, every: 40s, within: 2min}
  - {kind: kill-node, on: rack=0, at: time=1h, repair: none, retrigger: 2}
gates: ["throughput_drop <= 40%", "recovery_seconds p95 < 5"]
halt: ["training_loss is nan"]
twin: true
backend: local
""",
    """\
# a profile
name: &n as-it-fails
job: &job
  steps: 600
  data: text.txt
  dilation: 2.5
profile: {name: llama3, failures: 5}
faults:
- &f
  kind: kill-process
  at:
    step: 20
- <<: *f
  at: step=90
""",
    "{name: x, job: {data: text.txt}, profile: llama3, seed: 9223372036854775807}\n",
)

WORDS = (
    "{", "}", "[", "]", ": ", "- ", "? ", "| ", "> ", "&a ", "*a", "*n", "<<: *f", "<<: ",
    "!!int ", "!!python/name:os.x ",
    '"', "'", "\t", "\n", "\r", "#", "%YAML 9.9\n", "---\n", "...\n", ",", "=", "+", "-1", "0", "1e999", ".nan", ".inf",
    "9" * 25, "0x10", "1_000", "~", "null", "true", "yes", "2024-01-01", "٣", "\u202e", "\ufeff",
    "\u2028", "\x85", "\x7f",
    "\\", '"\\x1b[2J"', '"\\uD800"', '"\\UFFFFFFFF"', "steps", "step", "sec", "random:99",
    "rank=9", "link=1-2", "rack=7",
    "role=store", "phase=regroup", "time=5s", "1/0s", "0/min", "5000/step", "1steps", "0s", "-5s", "1e9h", "999999999h",
    "999999999steps", "%", "101%", "llama3", "failslow", "retrigger: 0", "every: 1step",
    "rate: 9/s", "count: 0", "for: 3s",
)  # fmt: skip

VALUES = (
    None, True, False, -1, 0, 1, 3, 10**9, 10**17, 2**63, 10**30, -0.0, 0.5, 1e308, float("nan"),
    float("inf"), "", " ", "x",
    "x" * 5000, "step=1", "step=1,step=2", "node=9", "random:0", "1steps", "1ms", "0.5/min",
    "1000/s", "1/steps", "50%", "-1%",
    "every-attempt", "kill-node", "drop-link", "llama3:0", "llama3:9999", "\x00", "\x1b[31m",
    "\u2028", "no\nline", "~", "on",
    [], {}, [[]], [None], {"a": {}}, {"name": "llama3"}, {"step": []}, {"phase": "transfer"}, ["x"] * 3, [{}] * 3,
)  # fmt: skip


def alias_bomb(_: Random) -> bytes:
    lines = ["name: x", "a: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]" for i in range(9)]
    return "\n".join(lines).encode()


def merge_bomb(_: Random) -> bytes:
    lines = ["name: x", "m0: &m0 {a: 1, b: 2}"]
    lines += [f"m{i + 1}: &m{i + 1} {{<<: [{', '.join([f'*m{i}'] * 9)}]}}" for i in range(9)]
    return "\n".join(lines).encode()


def itself(rng: Random) -> bytes:
    return rng.choice(
        ["name: x\nfaults: &f [*f]", "&x {name: x, job: *x}", "name: &n [*n, *n]", "a: &a {<<: *a}"]
    ).encode()


def deep(rng: Random) -> bytes:
    depth = rng.choice([21, 200, 5000, 20_000])
    return rng.choice(
        [
            f"name: x\njob: {'[' * depth}",
            f"name: x\njob: {'{a: ' * depth}",
            f"name: x\n{'- ' * depth}x",
            f"name: x\njob: {'? ' * depth}",
            "\n".join(f"{' ' * level}a:" for level in range(min(depth, 400))),
        ]
    ).encode()


def long(rng: Random) -> bytes:
    count = rng.choice([100, 1001, 3000])
    return rng.choice(
        [
            "name: x\n" + "".join(f"key{i}: 1\n" for i in range(count)),
            "name: x\nfaults:\n" + f"- {{kind: kill-process, at: step={count}}}\n" * count,
            "name: x\nfaults:\n" + "- {kind: kill-process, rate: 9/step}\n" * 50,
            "name: x\ngates: [" + "a, " * count + "]",
            f"name: {'x' * count * 50}",
            f"name: x\nseed: {'9' * count}",
            f"name: x\njob: {{nodes: {count}, gpus_per_node: {count}}}",
            f"name: x\njob: {{nodes: 1024, gpus_per_node: 1, steps: 100000000, data: text.txt, model: 7b}}\n"
            f"faults: [{{kind: kill-process, on: random:{count % 1024}, rate: 1/1000steps, repair: 1step}}]",
        ]
    ).encode()


def bytes_of(rng: Random) -> bytes:
    """One to three places cut out, doubled, overwritten or filled with any bytes."""
    content = bytearray(rng.choice(SOUND).encode())
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        start = rng.randrange(len(content))
        end = start + rng.choice([0, 1, 4, 30])
        noise = bytes(rng.randrange(256) for _ in range(rng.choice([0, 1, 3])))
        content[start:end] = rng.choice(
            [b"", bytes(content[start:end]) * 2, noise, b"\x00", b"\xff\xfe", b"\xed\xa0\x80"]
        )
    return bytes(content)


def encoding(rng: Random) -> bytes:
    name = rng.choice(["utf-16", "utf-32", "utf-8-sig", "cp037", "utf-7"])
    return rng.choice(SOUND).encode(name)[: rng.choice([None, 101])]


def words_of(rng: Random) -> bytes:
    """One to three words put in, or put in place of what stands there."""
    text = rng.choice(SOUND)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        start = rng.randrange(len(text))
        text = text[:start] + rng.choice(WORDS) + text[start + rng.choice([0, 0, 1, 6]) :]
    return text.encode(errors="surrogatepass")


def lines_of(rng: Random) -> bytes:
    """Lines doubled, dropped, swapped, moved in or out, or made of tabs."""
    lines = rng.choice(SOUND).splitlines()
    for _ in range(rng.randint(1, 2)):
        here, there = rng.randrange(len(lines)), rng.randrange(len(lines))
        match rng.randrange(6):
            case 0:
                lines.insert(there, lines[here])
            case 1:
                lines[here] = ""
            case 2:
                lines[here], lines[there] = lines[there], lines[here]
            case 3:
                lines[here] = " " * rng.randint(1, 4) + lines[here]
            case 4:
                lines[here] = lines[here].lstrip()
            case 5:
                lines[here] = lines[here].replace("  ", "\t")
    return "\n".join(lines).encode()


def _places(value: object, where: tuple = ()) -> list[tuple]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [where, *(place for key, item in items for place in _places(item, (*where, key)))]


def values_of(rng: Random) -> bytes:
    """One to three values replaced by others, dropped, or said under another key."""
    raw = yaml.safe_load(rng.choice(SOUND).replace(" on:", " 'on':").replace("{on:", "{'on':"))
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        place = rng.choice([place for place in _places(raw) if place])
        parent = raw
        for key in place[:-1]:
            parent = parent[key]
        match rng.randrange(4):
            case 0 | 1:
                parent[place[-1]] = rng.choice(VALUES)
            case 2:
                del parent[place[-1]]
            case 3 if isinstance(parent, dict):
                parent[rng.choice(["sed", "repare", "for", "profile", "limits", "0", "", "every", "within"])] = (
                    rng.choice(VALUES)
                )
        if not raw:
            break
    if rng.random() < 0.5:
        return json.dumps(raw, ensure_ascii=rng.random() < 0.5).encode(errors="surrogatepass")
    return yaml.safe_dump(raw, allow_unicode=True).encode()


# The common ones often, the others now and then.
DAMAGES = (
    *[bytes_of] * 4, *[words_of] * 6, *[lines_of] * 4, *[values_of] * 10, encoding, deep, long,
    itself, alias_bomb, merge_bomb,
)  # fmt: skip


def damaged(seed: int) -> tuple[str, bytes]:
    """How it was damaged, and the content of the file; the same for the same seed."""
    rng = Random(seed)
    how = rng.choice(DAMAGES)
    return how.__name__, how(rng)
