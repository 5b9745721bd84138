# fish completion for kvctl
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
