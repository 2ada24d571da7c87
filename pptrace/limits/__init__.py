"""What inputs and steps may take of the machine, and the environment variables that say otherwise."""
