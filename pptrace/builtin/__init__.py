"""Networks and costs that the core itself offers."""
