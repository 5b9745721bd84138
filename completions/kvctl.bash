# bash completion for kvctl
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
