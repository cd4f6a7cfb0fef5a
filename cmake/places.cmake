# SPDX-License-Identifier: Apache-2.0
# The installed places, and the path from the executable to its data, so that the installation can be moved.
include(GNUInstallDirs)
set(aisp_data_dir "${CMAKE_INSTALL_DATADIR}/aisp")
file(RELATIVE_PATH aisp_data_from_executable "${CMAKE_INSTALL_FULL_BINDIR}" "${CMAKE_INSTALL_FULL_DATADIR}/aisp")
