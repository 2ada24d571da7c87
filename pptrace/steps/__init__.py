"""Tables of actions: read, indexed, validated, with messages in place."""
