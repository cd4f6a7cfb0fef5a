// SPDX-License-Identifier: Apache-2.0
// The parent's side of the probe; CUDA is called in probe/probe_cuda.cpp only.
#include "machine/machine.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/hardware_key.hpp"
#include "base/system/interrupt.hpp"
#include "machine/host.hpp"
#include "machine/probe/probe_answer.hpp"

namespace aisp::machine {
namespace {

Machine without_gpus(const std::string& error, const std::string& advice) {
  Machine machine;
  machine.cuda_error = error;
  machine.cuda_advice = advice;
  machine.driver_version = read_driver_version("/");
  machine.host = read_host();
  return machine;
}

}  // namespace

std::string cuda_version_text(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

Machine probe(double limit_s, const std::string& executable) try {
  const ProbeAnswer answer = ask_child("__probe", limit_s, executable);
  return answer.error.empty() ? answer.json.get<Machine>() : without_gpus(answer.error, answer.advice);
} catch (const std::exception& error) {
  if (base::interrupted()) throw;
  return without_gpus(std::string{"the process that asks the CUDA driver gave an unreadable answer: "} + error.what(),
                      "build aisp anew");
}

int probe_main(int fd) { return write_answer(fd, probe_here()); }

std::string hardware_key(const Machine& machine, const std::vector<int>& gpus) {
  std::vector<std::string> names;
  for (const Gpu& gpu : machine.gpus)
    if (std::find(gpus.begin(), gpus.end(), gpu.ordinal) != gpus.end()) names.push_back(gpu.name);
  return names.empty() ? std::string{base::hardware_of_hosts} : base::hardware_key(names);
}

}  // namespace aisp::machine
