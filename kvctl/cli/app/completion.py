"""`kvctl completion`: completion scripts of shells, and the hidden command that they call."""

from contextlib import suppress
from typing import Annotated

import typer

from kvctl.cli.app import candidates, main
from kvctl.cli.app.command import command
from kvctl.cli.app.parameters import one_of
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
        found = candidates.complete(main.root(), words[:-1], words[-1])
        session.write("".join(f"{text}\t{help}\n" for text, help in found).encode())
