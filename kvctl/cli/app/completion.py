"""`kvctl completion`: completion scripts of shells, the hidden command that they call, and its candidates."""

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from typer.core import TyperArgument, TyperOption

from kvctl import atomic_file
from kvctl.cli.app import main
from kvctl.cli.app.command import Group, command
from kvctl.cli.app.help_page import spellings, tail_of
from kvctl.cli.app.options import SharedValues, argument, one_of, shared_options
from kvctl.cli.app.session import Session
from kvctl.cli.records import COMPLETION
from kvctl.errors import ConflictError, KvctlError, UsageError
from kvctl.phrases import lines
from kvctl.render.view import document

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
        "kvctl completion install",
        "kvctl completion install zsh",
        'eval "$(kvctl completion bash)"',
        "kvctl completion zsh > ~/.zfunc/_kvctl",
    ],
    prints=(COMPLETION,),
)
def completion(
    session: Session,
    shell: Annotated[str, argument("SHELL|install", "Shell: bash, zsh or fish", one_of(*SHELLS, "install"))],
    user_shell: Annotated[
        str | None,
        argument("[SHELL]", "With install, the shell [default: that of SHELL in the environment]", one_of(*SHELLS)),
    ] = None,
) -> None:
    """Print the completion script of a shell, or install it.

    `kvctl completion install` writes the script to the folder where the shell, or the package bash-completion, looks
    for those of a user:

    - bash: ~/.local/share/bash-completion/completions/kvctl
    - zsh: ~/.zfunc/_kvctl
    - fish: ~/.config/fish/completions/kvctl.fish

    It changes no other file. If a line in ~/.bashrc or ~/.zshrc is needed, it prints the line. To uninstall, delete the
    file. A file that is not kvctl's is not replaced (exit code 4).

    The wheel also installs the scripts of all three shells below share/ of its environment. If that is /usr or
    /usr/local, as with `pip install` outside of a virtual environment, there is nothing to do: open a new shell.

    The script completes commands, options and their values, names of contexts, buckets and replicas with their kinds,
    refs, revisions, and keys token by token. If the server does not answer within a second, it offers nothing.
    """
    if user_shell and shell != "install":
        raise UsageError(f"Unexpected argument `{user_shell}`", hint="Use `kvctl completion install SHELL`")
    if shell == "install":
        _install(session, user_shell or os.path.basename(os.environ.get("SHELL", "")))
    else:
        session.write(_script(shell).encode())


def _script(shell: str) -> str:
    """Return the script of a shell. Raises UsageError."""
    if shell not in SCRIPTS:
        raise UsageError(f"`{shell}` is not a supported shell", hint=f"Use one of {', '.join(SHELLS)}")
    return SCRIPTS[shell]


def _install(session: Session, shell: str) -> None:
    """Write the script where the shell looks for it, and print the lines that the user has to add.

    Raises UsageError, ConflictError for a file that is not kvctl's, and KvctlError.
    """
    if not shell:
        raise UsageError("The variable SHELL does not name a shell", hint="Use `kvctl completion install bash`")
    script, home = _script(shell), Path.home()
    path = {
        "bash": Path(os.environ.get("XDG_DATA_HOME") or home / ".local/share", "bash-completion/completions/kvctl"),
        "zsh": home / ".zfunc/_kvctl",
        "fish": Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config", "fish/completions/kvctl.fish"),
    }[shell]
    before = _text_of(path)
    if before is not None and not before.startswith(script.partition("\n")[0]):
        raise ConflictError(f"`{path}` is not a script of kvctl", hint="Move it away, then install again")
    if before != script:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_file.replace(path.resolve(), script.encode(), mode=atomic_file.PUBLIC)
        except OSError as error:
            raise KvctlError(f"Cannot write `{path}`: {error.strerror}") from None
    missing = _missing_lines(shell, path)
    if session.options.output:
        facts = {"shell": shell, "path": str(path), "changed": before != script, "lines": missing}
        session.show(document(facts, name="path"))
        return
    done = "Wrote" if before is None else "Updated" if before != script else "Nothing to change in"
    advice = [f"Add to ~/.{shell}rc, then open a new shell:", "", *(f"    {line}" for line in missing)]
    then = advice if missing else ["Open a new shell to use it"]
    session.note(lines(f"{done} `{path}`", *then), always=True)


def _missing_lines(shell: str, path: Path) -> list[str]:
    """Return what the shell's start-up file lacks: bash-completion loads a user's scripts, zsh searches `fpath`."""
    home = Path.home()
    files = (home / ".bashrc", home / ".bash_profile")
    if shell == "bash":
        return [] if _mention(files, "^[^#]*(bash.completion|kvctl)") else [f"source {shlex.quote(str(path))}"]
    if shell == "zsh" and not _mention([home / ".zshrc"], r"^[^#]*fpath.*\.zfunc"):
        return ["fpath=(~/.zfunc $fpath)", "autoload -U compinit && compinit"]
    return []


def _mention(files: Iterable[Path], pattern: str) -> bool:
    return any(re.search(pattern, _text_of(file) or "", re.MULTILINE) for file in files)


def _text_of(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KvctlError(f"Cannot read `{path}`: {error.strerror}") from None


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
        names = ctx.command.list_commands(None)
        return [(name, ctx.command.entries[name].summary) for name in names if name.startswith(incomplete)]
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


def _takes_more(ctx: Any, param: Any) -> bool:
    if not isinstance(param, TyperArgument):
        return False
    return param.nargs == -1 or ctx.params.get(param.name) in (None, (), [])


def _values(ctx: Any, param: TyperArgument | TyperOption, incomplete: str) -> list[Candidate]:
    found = [(item.value, item.help or "") for item in param.shell_complete(ctx, incomplete)]
    words = (param.metavar or "").strip("[].").split("|")
    if not found and any(word in _PATHS for word in words):
        return [(FILES, "")]
    return [candidate for candidate in found if _SAFE.match(candidate[0])]
