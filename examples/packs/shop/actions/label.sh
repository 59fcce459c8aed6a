# The order arrives as an argument, and everything as a variable and as JSON on stdin.
printf '{"label": "%s-%s"}' "$HF_INPUT_COUNTRY" "$1"
