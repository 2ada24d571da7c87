"""What lies between ranks."""
