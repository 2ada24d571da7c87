"""Events of foreign files, in columns or one by one, whatever they mean."""
