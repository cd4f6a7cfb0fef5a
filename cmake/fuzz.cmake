# SPDX-License-Identifier: Apache-2.0
# fuzz_NAME for every reader of tests/fuzz/readers.cpp, with the sources it needs built anew under the sanitizers. Clang 15 or newer: older
# ones have no std::source_location with libstdc++. cmake --preset fuzz && cmake --build --preset fuzz; tests/fuzz/run runs them.
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang" OR CMAKE_CXX_COMPILER_VERSION VERSION_LESS 15)
  message(FATAL_ERROR "AISP_FUZZ needs clang 15 or newer, not ${CMAKE_CXX_COMPILER}; apt-get install clang-16 libclang-rt-16-dev")
endif()
file(GLOB_RECURSE fuzzed CONFIGURE_DEPENDS "src/base/*.cpp" "src/evidence/*.cpp" "src/report/*.cpp" "src/knowledge/*.cpp")
set(needed src/run/wire/protocol.cpp src/run/wire/request.cpp src/machine/gpu_specs.cpp src/suite/settings/configuration.cpp
    src/suite/settings/settings.cpp src/pair/sizes.cpp src/suite/settings/configuration_file.cpp)
list(TRANSFORM needed PREPEND "${PROJECT_SOURCE_DIR}/")
list(REMOVE_ITEM fuzzed ${alone})
list(REMOVE_ITEM alone "${PROJECT_SOURCE_DIR}/src/base/build_info.cpp")
aisp_batch(fuzzed fuzzed "${PROJECT_SOURCE_DIR}/src" ${fuzzed} ${needed})
add_library(aisp_fuzzed OBJECT EXCLUDE_FROM_ALL ${fuzzed} ${alone} "${page_code}" tests/fuzz/readers.cpp)
target_include_directories(aisp_fuzzed PUBLIC src tests)
target_link_libraries(aisp_fuzzed PUBLIC aisp_api aisp_libraries)
target_compile_options(aisp_fuzzed PUBLIC -O1 -gline-tables-only -fno-omit-frame-pointer -fsanitize=fuzzer-no-link,address,undefined
                       -fno-sanitize-recover=undefined)
add_custom_target(fuzzers)
set(number 0)
foreach(name IN ITEMS results expectations manifest configuration model protocol)
  add_executable(fuzz_${name} EXCLUDE_FROM_ALL tests/fuzz/fuzzer.cc)
  target_compile_definitions(fuzz_${name} PRIVATE AISP_READER=${number})
  target_link_libraries(fuzz_${name} PRIVATE aisp_fuzzed)
  target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer,address,undefined)
  add_dependencies(fuzzers fuzz_${name})
  math(EXPR number "${number} + 1")
endforeach()
