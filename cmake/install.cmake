# SPDX-License-Identifier: Apache-2.0
# cmake --install: bin/aisp; share/aisp with what it reads at run time (expectations), the scripts that it names, documents and chapters,
# laid out as in the tree so that their links lead somewhere; the man page and the completions.
# What only builds against aisp need is a component of its own, which the wheel leaves out.
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME program)
install(TARGETS aisp)
# The module of Python, for PYTHONPATH; the wheel brings the same files as any other package does.
set(aisp_python_dir "lib/aisp/python")
install(TARGETS aisp_foreign LIBRARY DESTINATION "${aisp_python_dir}/aisp")
install(DIRECTORY python/src/aisp DESTINATION "${aisp_python_dir}" FILES_MATCHING PATTERN "*.py" PATTERN __pycache__ EXCLUDE)
# Installed files name no folder of the machine that built them. This is the command that CMake's own install scripts use.
install(CODE "file(RPATH_REMOVE FILE \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}/aisp\")")
install(CODE "file(RPATH_REMOVE FILE \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${aisp_python_dir}/aisp/libaisp.so\")")
install(DIRECTORY expectations docs chapters templates DESTINATION "${aisp_data_dir}")
install(DIRECTORY scripts/tuning scripts/lib scripts/containers scripts/cluster DESTINATION "${aisp_data_dir}/scripts")
install(PROGRAMS scripts/gpu-setup.sh scripts/nightly.sh scripts/numa-topology.sh scripts/reset-gpu.sh scripts/system-tuning.sh
        DESTINATION "${aisp_data_dir}/scripts")
install(FILES README.md CHANGELOG.md CONTRIBUTING.md LICENSE DESTINATION "${aisp_data_dir}")
# docs/ci.md begins with it.
install(FILES .github/workflows/nightly.yml DESTINATION "${aisp_data_dir}/.github/workflows")
install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DOCDIR}" RENAME copyright)
# Built by a target that nothing depends on: installed where that was done.
if(NOT cutlass_absence)
  install(FILES "$<TARGET_FILE:aisp_cutlass>" DESTINATION lib/aisp OPTIONAL)
  install(FILES "${AISP_CUTLASS_INCLUDE}/../LICENSE.txt" DESTINATION "${CMAKE_INSTALL_DOCDIR}" RENAME LICENSE.CUTLASS.txt OPTIONAL)
endif()

# Made by the executable itself at install time, so that they are of these very commands.
foreach(file IN ITEMS "bash|${CMAKE_INSTALL_DATADIR}/bash-completion/completions/aisp" "zsh|${CMAKE_INSTALL_DATADIR}/zsh/site-functions/_aisp"
                      "fish|${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d/aisp.fish" "man|${CMAKE_INSTALL_MANDIR}/man1/aisp.1")
  string(REPLACE "|" ";" file "${file}")
  list(GET file 0 kind)
  list(GET file 1 place)
  get_filename_component(folder "${place}" DIRECTORY)
  get_filename_component(name "${place}" NAME)
  install(CODE "execute_process(COMMAND \"$<TARGET_FILE:aisp>\" completion ${kind} OUTPUT_FILE \"${PROJECT_BINARY_DIR}/${kind}.completion\" COMMAND_ERROR_IS_FATAL ANY)")
  install(FILES "${PROJECT_BINARY_DIR}/${kind}.completion" DESTINATION "${folder}" RENAME "${name}")
endforeach()
