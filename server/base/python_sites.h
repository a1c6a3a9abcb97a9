#pragma once

// Where Python's wheels are: $VIRTUAL_ENV, the environment that this program is installed in, .venv
// beside the program, the user's and the system's site-packages; in this order.

// Patterns for glob(), NULL behind the last. They are the process's, and stay.
const char *const *python_sites(void);
