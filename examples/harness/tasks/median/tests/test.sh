exec python3 "$TESTS/check.py"
