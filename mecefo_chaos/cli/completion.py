"""`chaos completion`: the script that has a shell complete the words of a command line."""

from __future__ import annotations

import os
from typing import ClassVar

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
)

from mecefo_chaos.cli.shared.output import print_as_is

_PROGRAM = "chaos"
_VARIABLE = "_CHAOS_COMPLETE"
# Bash splits a word at each of these: what is offered is what comes behind the last one.
_SEPARATORS = ("=", ":")
# Errors go nowhere, since they would be written into the line that is being typed.
_BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' response completion kind value
    response=$(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD %(complete_var)s=bash_complete "$1" 2>/dev/null)
    COMPREPLY=()
    for completion in $response; do
        IFS=',' read -r kind value <<< "$completion"
        if [[ $kind == dir ]]; then
            compopt -o dirnames
        elif [[ $kind == file ]]; then
            compopt -o default
        else
            COMPREPLY+=("$value")
            [[ $value == *= ]] && compopt -o nospace
        fi
    done
    return 0
}
complete -o nosort -F %(complete_func)s %(prog_name)s mecefo-chaos
"""


class _Bash(BashComplete):
    """Bash, in which a word may be split at "=" and ":"."""

    source_template: ClassVar[str] = _BASH

    def source(self) -> str:
        """The script; which version of bash will read it is not asked."""
        return ShellComplete.source(self)

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before, and the one being typed, each in one piece."""
        typed = os.environ["COMP_WORDS"].split("\n")[: int(os.environ["COMP_CWORD"]) + 1]
        words: list[str] = []
        for word in typed:
            is_continued = bool(words) and (word in _SEPARATORS or words[-1].endswith(_SEPARATORS))
            words[len(words) - is_continued :] = [words[-1] + word if is_continued else word]
        return [_unquoted(word) for word in words[1:-1]], _unquoted(words[-1]) if len(words) > 1 else ""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """What is offered, without what bash takes for a word of its own."""
        kept = max(incomplete.rfind(separator) for separator in _SEPARATORS) + 1
        offered = super().get_completions(args, incomplete)
        return [
            CompletionItem(item.value[kept:] if item.type == "plain" else item.value, item.type) for item in offered
        ]


def _unquoted(word: str) -> str:
    return word.strip("'\"")


add_completion_class(_Bash)
_SHELLS: dict[str, type[ShellComplete]] = {"bash": _Bash, "zsh": ZshComplete, "fish": FishComplete}
_HELP = """Print the script that completes command lines in SHELL: faults, options, strategies, metrics, runs.

\b
bash: echo 'eval "$(chaos completion bash)"' >> ~/.bashrc
zsh:  echo 'eval "$(chaos completion zsh)"' >> ~/.zshrc
fish: chaos completion fish > ~/.config/fish/completions/chaos.fish
"""


@click.command(help=_HELP)
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(list(_SHELLS)))
@click.pass_context
def completion(context: click.Context, shell: str) -> int:
    """Print the script that completes command lines in SHELL."""
    print_as_is(_SHELLS[shell](context.find_root().command, {}, _PROGRAM, _VARIABLE).source())
    return 0
