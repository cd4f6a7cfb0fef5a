// SPDX-License-Identifier: Apache-2.0
// They look for what tells timed runs from others, and throw when they find it.
#include "calls.hpp"
#include "doubling.cuh"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace aisp::ch87 {
namespace {

using namespace selftest;

class Spies final : public Spying<GpuDoubling> {
 public:
  using Spying::Spying;
  void on_the_profiler(Launch& launch) {
    std::ifstream maps{"/proc/self/maps"};
    bool found = false;
    for (std::string line; std::getline(maps, line);) found |= line.find("libcupti") != std::string::npos;
    look(launch, found ? "CUPTI is loaded" : "CUPTI is not loaded");
  }
  void on_the_stream(Launch& launch) {
    const bool idle = cudaStreamQuery(launch.stream) == cudaSuccess;
    cudaGetLastError();
    look(launch, idle ? "the stream is idle" : "the stream is held back");
  }
  void on_the_streams_name(Launch& launch) {
    look(launch, "the stream is " + std::to_string(reinterpret_cast<std::uintptr_t>(launch.stream)));
  }
};

}  // namespace

extern constinit const selftest::Case gpu_spy_on_profiler =
    pair_of<&Spies::on_the_profiler>({.does = "looks whether CUPTI is loaded", .must = sees_nothing});
extern constinit const selftest::Case gpu_spy_on_gate =
    pair_of<&Spies::on_the_stream>({.does = "looks whether its stream is held back", .must = sees_nothing});
extern constinit const selftest::Case gpu_spy_on_stream =
    pair_of<&Spies::on_the_streams_name>({.does = "looks on which stream it runs", .must = sees_nothing});
extern constinit const selftest::Case gpu_spy_on_environment =
    pair_of<&Spies::on_the_environment>({.does = "compares the environment from run to run", .must = sees_nothing});

}  // namespace aisp::ch87
