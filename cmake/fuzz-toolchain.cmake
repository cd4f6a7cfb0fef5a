# SPDX-License-Identifier: Apache-2.0
# The newest clang of the machine: Debian 12's own is too old for the headers of this tree.
find_program(AISP_FUZZ_CLANG NAMES clang++-20 clang++-19 clang++-18 clang++-17 clang++-16 clang++-15 clang++ REQUIRED)
set(CMAKE_CXX_COMPILER "${AISP_FUZZ_CLANG}")
