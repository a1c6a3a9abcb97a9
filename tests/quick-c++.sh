#!/bin/sh
# The host's compiler, for tests of something else than what it makes of kernels: it makes less of them than opd
# asks for, in a third of the time. Its version is another one, so its images have names of their own in the cache.
# As opd asks it makes what does many `rounds` to take its time, a second of which is not to become four.
case " $* " in
*" --version "*) version=$(c++ --version) && echo "$version" | sed "1s/\$/, quick $(cksum <"$0")/" ;;
*" -O0 "* | *" -O1 "*) exec c++ "$@" ;; # a trial's level is its own matter
*) grep -qsw rounds opd.cpp && exec c++ "$@" || exec c++ "$@" -O0 ;;
esac
