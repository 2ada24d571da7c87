#compdef pptrace

_pptrace_completion() {
    local kind value meaning
    local -a response plain described
    (( $+commands[pptrace] )) || return 1

    response=("${(@f)$(COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT - 1)) _PPTRACE_COMPLETE=zsh_complete pptrace 2> /dev/null)}")
    for kind value meaning in ${response}; do
        case "$kind" in
            plain) if [[ "$meaning" == _ ]]; then plain+=("$value"); else described+=("$value:$meaning"); fi ;;
            file) _files ;;
            suffixes) _files -g "*.(${value// /|})" ;;
        esac
    done
    (( ${#described} )) && _describe -V unsorted described
    (( ${#plain} )) && compadd -V unsorted -a plain
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _pptrace_completion "$@"
else
    compdef _pptrace_completion pptrace
fi
