"""`kvctl completion`: completion scripts of shells, the hidden command that they call, and its candidates."""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperOption

from kvctl.cli.app import main
from kvctl.cli.app.command import Group, command
from kvctl.cli.app.help_page import spellings, tail_of
from kvctl.cli.app.options import SharedValues, one_of, shared_options
from kvctl.cli.app.session import Session
from kvctl.errors import UsageError

SHELLS = ("bash", "zsh", "fish")

BASH = r"""# bash completion for kvctl
_kvctl() {
    local line=${COMP_LINE:0:COMP_POINT} rest word words=() candidate i breaks="=:"
    # bash splits words at "=", ":" and "@": what stands together on the line belongs together.
    [[ $COMP_WORDBREAKS == *@* ]] && breaks+=@
    for ((i = 0; i <= COMP_CWORD; i++)); do
        rest=${line#"${line%%[![:space:]]*}"}
        word=${COMP_WORDS[i]}
        [[ ${#word} -gt ${#rest} ]] && word=$rest
        if [[ $i -eq 0 || $rest != "$line" ]]; then words+=("$word"); else words[${#words[@]} - 1]+=$word; fi
        line=${rest#"$word"}
    done
    word=${words[${#words[@]} - 1]}
    COMPREPLY=()
    while IFS= read -r candidate; do
        if [[ $candidate == $'\tfiles'* ]]; then
            compopt -o default 2>/dev/null
            return
        fi
        candidate=${candidate%%$'\t'*}
        # Only what follows the last of them is replaced.
        [[ $word == *[$breaks]* ]] && candidate=${candidate#"${word%"${word##*[$breaks]}"}"}
        COMPREPLY+=("$candidate")
    done < <(kvctl __complete -- "${words[@]:1}" 2>/dev/null)
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[.=@] ]] && compopt -o nospace 2>/dev/null
}
complete -F _kvctl kvctl
"""

ZSH = r"""#compdef kvctl
# zsh completion for kvctl
_kvctl() {
    local -a lines values shown open
    local line value
    lines=("${(@f)$(kvctl __complete -- "${(@Q)words[2,CURRENT-1]}" "${(Q)words[CURRENT]}" 2>/dev/null)}")
    if [[ $lines[1] == $'\tfiles'* ]]; then
        compset -P '*='
        _files
        return
    fi
    for line in $lines; do
        value=${line%%$'\t'*}
        if [[ $value == *[.=@] ]]; then
            open+=("$value")
        elif [[ -n $value ]]; then
            values+=("$value")
            printf -v line '%-24s  %s' "$value" "${line#*$'\t'}"
            shown+=("$line")
        fi
    done
    (( $#open )) && compadd -Q -S '' -a open
    (( $#values )) && compadd -Q -l -d shown -a values
}
if [[ $funcstack[1] == _kvctl ]]; then
    _kvctl "$@"
else
    compdef _kvctl kvctl
fi
"""

FISH = r"""# fish completion for kvctl
function __kvctl_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l lines (kvctl __complete -- $words[2..] "$current" 2>/dev/null)
    if string match -q \t'files*' -- "$lines[1]"
        set -l option (string match -r -- '^--[^=]+=' "$current")
        __fish_complete_path (string replace -- "$option" '' "$current") | string replace -r -- '^' "$option"
    else
        printf '%s\n' $lines
    end
end
complete -c kvctl -f -a '(__kvctl_complete)'
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


@command(
    "completion",
    examples=[
        'eval "$(kvctl completion bash)"',
        "kvctl completion zsh > ~/.zfunc/_kvctl",
        "kvctl completion fish > ~/.config/fish/completions/kvctl.fish",
    ],
)
def completion(
    session: Session,
    shell: Annotated[
        str, typer.Argument(metavar="SHELL", help="Shell: bash, zsh or fish", autocompletion=one_of(*SHELLS))
    ],
) -> None:
    """Print the completion script of a shell.

    The wheel installs the scripts of all three shells below share/ of its environment. If that is /usr or /usr/local,
    as with `pip install` outside of a virtual environment, there is nothing to do: open a new shell. Otherwise:

    - bash: add `eval "$(kvctl completion bash)"` to ~/.bashrc
    - zsh: write the script to ~/.zfunc/_kvctl, and have these lines in ~/.zshrc:
        fpath=(~/.zfunc $fpath)
        autoload -U compinit && compinit
    - fish: write the script to ~/.config/fish/completions/kvctl.fish

    It completes commands, options and their values, names of contexts, buckets and replicas with their kinds, refs,
    revisions, and keys token by token. If the server does not answer within a second, it offers nothing.
    """
    if shell not in SCRIPTS:
        raise UsageError(f"`{shell}` is not a supported shell", hint=f"Use one of {', '.join(SHELLS)}")
    session.write(SCRIPTS[shell].encode())


@command("__complete", examples=["kvctl __complete -- bucket ''"], hidden=True)
def complete_line(session: Session, words: list[str]) -> None:
    """Print candidates for the last word, each with a tab and its description."""
    with suppress(Exception):
        found = complete(main.root(), words[:-1], words[-1])
        session.write("".join(f"{text}\t{help}\n" for text, help in found).encode())


FILES = "\tfiles"
"""Marker that tells the shell to complete file names."""

Candidate = tuple[str, str]
"""Text to insert, and its description."""

# Never offer text that a shell could run as code or a terminal as a control sequence.
_SAFE = re.compile(r"[-\w./=:@%+,]+\Z")
_PATHS = ("FILE", "DIR", "PATH", "PLAN")


def complete(tree: Group, words: Sequence[str], incomplete: str) -> list[Candidate]:
    """Return candidates for `incomplete` after `words`. Raises LookupError if they name an unknown command."""
    ctx = _walk(tree, list(words))
    option = _option_awaiting_value(ctx, words)
    if option is not None:
        # An option without its value would make the parser reject the words before it.
        return _values(_walk(tree, list(words[:-1])), option, incomplete)
    if incomplete.startswith("-") and "--" not in words:
        return _option_names(ctx, incomplete)
    if isinstance(ctx.command, Group):
        return _commands(ctx.command, incomplete)
    tail = tail_of(ctx.command.params)
    if tail is not None and "--" in words:
        return [(FILES, "")]
    argument = next((param for param in ctx.command.params if param is not tail and _takes_more(ctx, param)), None)
    return [] if argument is None else _values(ctx, argument, incomplete)


def _walk(tree: Group, words: list[str]) -> Any:
    """Return the innermost command that `words` name, with its parsed parameters."""
    ctx = tree.make_context("kvctl", words, obj=SharedValues(), resilient_parsing=True)
    while isinstance(ctx.command, Group):
        if not ctx.args:
            return ctx
        name, command, arguments = ctx.command.resolve_command(ctx, ctx.args)
        if command is None:
            raise LookupError(ctx.args[0])
        ctx = command.make_context(name, arguments, parent=ctx, resilient_parsing=True)
    return ctx


def _option_awaiting_value(ctx: Any, words: Sequence[str]) -> TyperOption | None:
    if not words or "--" in words:
        return None
    options = [param for param in ctx.command.params if isinstance(param, TyperOption) and not param.is_flag]
    return next((option for option in options if words[-1] in option.opts), None)


def _option_names(ctx: Any, incomplete: str) -> list[Candidate]:
    name, equals, value = incomplete.partition("=")
    options = [param for param in ctx.command.params if isinstance(param, TyperOption) and not param.hidden]
    if equals:
        option = next((option for option in options if name in option.opts and not option.is_flag), None)
        found = _values(ctx, option, value) if option is not None else []
        return [(text if text == FILES else f"{name}={text}", help) for text, help in found]
    # Offer a command's own options first, as the many shared ones are rarely wanted.
    options.sort(key=lambda option: option in shared_options())
    return [
        (spelling, option.help or "")
        for option in options
        for spelling in sorted(spellings(option), key=len, reverse=True)
        if spelling.startswith(incomplete)
    ]


def _commands(group: Group, incomplete: str) -> list[Candidate]:
    names = group.list_commands(None)
    return [(name, group.entries[name].summary) for name in names if name.startswith(incomplete)]


def _takes_more(ctx: Any, param: Any) -> bool:
    if not isinstance(param, TyperArgument):
        return False
    return param.nargs == -1 or ctx.params.get(param.name) in (None, (), [])


def _values(ctx: Any, param: TyperArgument | TyperOption, incomplete: str) -> list[Candidate]:
    found = [(item.value, item.help or "") for item in param.shell_complete(ctx, incomplete)]
    words = (param.metavar or "").strip("[].").split("|")
    if not found and any(word in _PATHS for word in words):
        return [(FILES, "")]
    return list(_safe(found))


def _safe(candidates: Iterable[Candidate]) -> Iterable[Candidate]:
    return (candidate for candidate in candidates if _SAFE.match(candidate[0]))
