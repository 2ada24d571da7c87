"""How training frameworks issue the messages between pipeline ranks."""
