"""How names and arguments of events say actions, messages, communication and ranks."""
