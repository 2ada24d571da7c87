function _pptrace_completion
    set -l current (commandline -ct)
    for line in (COMP_WORDS=(commandline -cp) COMP_CWORD=$current _PPTRACE_COMPLETE=fish_complete pptrace 2> /dev/null)
        set -l answer (string split -m 1 "," -- $line)
        switch $answer[1]
            case plain
                echo $answer[2]
            case file
                __fish_complete_path $current
            case suffixes
                set -l wanted (string replace -a " " "|" -- $answer[2])
                __fish_complete_path $current | string match -r "^[^\t]*(?:/|\.(?:$wanted))(?:\t.*)?\$"
        end
    end
end

complete --no-files --command pptrace --arguments "(_pptrace_completion)"
