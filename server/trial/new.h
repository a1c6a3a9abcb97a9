#pragma once

// "opd new FILE [KERNEL,KERNEL]", which `opctl new` becomes: prints the file with a header before
// it, and tells whether that loads.

int new_main(int argc, char **argv); // 0: it loads; 1: it does not; 2: there is nothing to print
