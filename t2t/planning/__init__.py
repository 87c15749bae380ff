"""Plans for devices that are not here: compile the step, read the program, estimate its time."""
