# SPDX-License-Identifier: Apache-2.0
# Where things are installed, and the way from the executable to its data, by which it finds them wherever the whole was put.
include(GNUInstallDirs)
set(aisp_data_dir "${CMAKE_INSTALL_DATADIR}/aisp")
file(RELATIVE_PATH aisp_data_from_executable "${CMAKE_INSTALL_FULL_BINDIR}" "${CMAKE_INSTALL_FULL_DATADIR}/aisp")
