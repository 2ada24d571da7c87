_pptrace_completion() {
    local IFS=$' \t\n' words=() word kind value suffix path
    for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
        # Bash takes --option=value apart at the sign.
        [[ "$word" == "=" && "${words[-1]}" == --* ]] || words+=("$word")
    done
    [[ "$word" == "=" ]] && words+=("")
    word="${words[-1]}"
    COMPREPLY=()
    compopt +o default +o bashdefault
    while IFS=, read -r kind value; do
        case "$kind" in
            plain) COMPREPLY+=("$value") ;;
            file) compopt -o default -o bashdefault ;;
            suffixes)
                # Where nothing matches, as with quotes and tildes, readline completes files itself.
                compopt -o filenames -o default -o bashdefault
                while IFS= read -r path; do COMPREPLY+=("$path"); done < <(
                    compgen -d -- "$word"
                    for suffix in $value; do compgen -f -X "!*.$suffix" -- "$word"; done
                )
                ;;
        esac
    done < <(COMP_WORDS="${words[*]}" COMP_CWORD=$((${#words[@]} - 1)) _PPTRACE_COMPLETE=bash_complete "$1" 2> /dev/null)
}

complete -o nosort -F _pptrace_completion pptrace
