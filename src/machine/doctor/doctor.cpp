// SPDX-License-Identifier: Apache-2.0
#include "machine/doctor/doctor.hpp"

#include <aisp/libraries/cutlass.hpp>
#include <aisp/library.hpp>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/system/files.hpp"
#include "base/text.hpp"
#include "machine/doctor/tcgen05.hpp"
#include "machine/library/library_search.hpp"
#include "machine/needs.hpp"

namespace aisp::machine {
namespace {

namespace fs = std::filesystem;

constexpr int good_driver = 580, needed_cuda = 13000;

int leading_number(std::string_view text) {
  int value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

void examine_driver(const Machine& machine, Findings& findings) {
  const std::string& version = machine.driver_version;
  if (version.empty() && machine.driver_cuda_version == 0) {
    findings.push_back(
        {"driver", machine.gpus.empty() ? Level::info : Level::warning, "no NVIDIA driver",
         "to use a GPU, install driver 580 or newer (setup.sh --with-driver), or start the container with its GPUs"});
    return;
  }
  const std::string supports =
      machine.driver_cuda_version > 0 ? ", supports CUDA " + cuda_version_text(machine.driver_cuda_version) : "";
  const std::string what = (version.empty() ? "of unknown version" : version) + supports;
  if (machine.driver_cuda_version > 0 && machine.driver_cuda_version < needed_cuda)
    findings.push_back({"driver", Level::problem, what, "install driver 580 or newer; this one cannot run CUDA 13 programs"});
  else if (!version.empty() && leading_number(version) < good_driver)
    findings.push_back({"driver", Level::warning, what, "install driver 580 or newer; older ones are untested"});
  else findings.push_back({"driver", Level::ok, what, ""});
}

void examine_runtime(const Machine& machine, Findings& findings) {
  if (machine.runtime_cuda_version == 0) return;
  const std::string what = "CUDA " + cuda_version_text(machine.runtime_cuda_version) + " runtime linked in";
  const bool too_new =
      machine.driver_cuda_version > 0 && machine.runtime_cuda_version / 1000 > machine.driver_cuda_version / 1000;
  if (too_new) findings.push_back({"runtime", Level::problem, what + ", newer than the driver", "install driver 580 or newer"});
  else findings.push_back({"runtime", Level::ok, what, ""});
}

// CUDA_VERSION of the first toolkit found.
std::string toolkit_version(const fs::path& root) {
  for (const fs::path& home : toolkit_homes(root)) {
    const std::string header = base::try_read_file(home / "include/cuda.h", std::size_t{8} << 20).value_or("");
    constexpr std::string_view mark = "#define CUDA_VERSION ";
    const std::size_t at = header.find(mark);
    if (at != std::string::npos)
      if (const int version = leading_number(base::trim(std::string_view{header}.substr(at + mark.size(), 12))); version > 0)
        return cuda_version_text(version) + " in " + home.string();
  }
  return {};
}

void examine_toolkit(const Surroundings& surroundings, Findings& findings) {
  const std::string found = surroundings.toolkit.value_or(toolkit_version(surroundings.root));
  if (found.empty())
    findings.push_back({"toolkit", Level::info, "no CUDA toolkit found", "only building aisp needs one; ./setup.sh installs it"});
  else if (leading_number(found) < 13)
    findings.push_back({"toolkit", Level::warning, found, "building aisp needs CUDA 13.0 or newer; ./setup.sh installs it"});
  else findings.push_back({"toolkit", Level::ok, found, ""});
}

// The families 12 are asked for only where others are known: an old assembler refuses everything.
void examine_assembler(const Surroundings& surroundings, Findings& findings) try {
  const auto& assembles = surroundings.assembles_tcgen05;
  if (!assembles) return;
  std::vector<std::string> accepted, refused, without;
  for (const std::string& target : targets_with(Tcgen05::present)) (assembles(target) ? accepted : refused).emplace_back(target);
  for (const std::string& target : targets_with(Tcgen05::lacking_on_blackwell))
    if (!accepted.empty()) (assembles(target) ? accepted : without).emplace_back(target);
  std::vector<std::string> parts;
  if (!accepted.empty()) parts.push_back("assembled for " + base::join(accepted, ", "));
  if (!refused.empty()) parts.push_back("refused for " + base::join(refused, ", "));
  if (!without.empty())
    parts.push_back("refused for " + base::join(without, ", ") + ", which have neither tcgen05 nor tensor memory");
  findings.push_back({"toolkit tcgen05", Level::info, base::join(parts, "; "),
                      refused.empty() ? "" : "./setup.sh installs CUDA 13.0, which knows these targets"});
} catch (const base::Error& error) {
  findings.push_back({"toolkit tcgen05", Level::warning, error.what(),
                      "aisp cannot be built with this toolkit: install it anew, or name another in CUDA_HOME"});
}

void examine_gpu_list(const Machine& machine, const Surroundings& surroundings, Findings& findings) {
  if (machine.gpus.empty()) {
    // A machine without a driver is meant to have no GPU; with one, something is wrong.
    const Level level = machine.driver_cuda_version == 0 && machine.driver_version.empty() ? Level::warning : Level::problem;
    findings.push_back({"GPUs", level, "no CUDA device" + (machine.cuda_error.empty() ? "" : ": " + machine.cuda_error),
                        (machine.cuda_advice.empty() ? "" : machine.cuda_advice + "; ") +
                            "until then GPU pairs are skipped and host pairs run"});
    return;
  }
  std::set<std::string> keys;
  for (const Gpu& gpu : machine.gpus) keys.insert(hardware_key(machine, {gpu.ordinal}));
  findings.push_back({"GPUs", Level::ok,
                      base::plural(machine.gpus.size(), "GPU") + (keys.size() == 1 ? ", hardware key " : ", hardware keys ") +
                          base::join({keys.begin(), keys.end()}, ", "),
                      ""});
  if (!machine.nvml_error.empty())
    findings.push_back(
        {"NVML", Level::warning, machine.nvml_error,
         "clocks, power, temperature and throttling stay unknown; in a container, add the driver capability 'utility'"});
  for (const Gpu& gpu : machine.gpus) examine_gpu(gpu, surroundings, findings);
}

void examine_peers(const Machine& machine, Findings& findings) {
  if (machine.gpus.size() < 2) return;
  std::size_t linked = 0, all = machine.gpus.size() * (machine.gpus.size() - 1);
  for (const Gpu& gpu : machine.gpus) linked += static_cast<std::size_t>(std::count(gpu.peers.begin(), gpu.peers.end(), true));
  if (linked == all) findings.push_back({"peer access", Level::ok, "between all GPUs", ""});
  else
    findings.push_back(
        {"peer access", Level::warning, std::to_string(linked) + " of " + std::to_string(all) + " directions",
         "pairs that need it are skipped; look at nvidia-smi topo -m, ACS settings and the container's isolation"});
}

// Opens CUTLASS's library to see whether its interface is this executable's.
std::string cutlass_refusal(const Surroundings& surroundings) try {
  if (surroundings.find_library) return surroundings.cutlass_refusal;
  cutlass_version();
  return {};
} catch (const Unsupported& reason) {
  const std::string text = reason.what();
  return text.substr(0, text.find("; "));
}

void examine_library(Library library, const Surroundings& surroundings, Findings& findings) {
  const std::string path = surroundings.find_library ? surroundings.find_library(library) : machine::locate(library);
  const std::string name = "library " + std::string{name_of(library)};
  if (path.empty())
    findings.push_back({name, Level::info,
                        file_names(library).front() + " not found; pairs and variants that call it are skipped",
                        library == Library::cutlass ? std::string{get_cutlass}
                                                    : "install it (./setup.sh) or set AISP_LIBRARY_PATH to its folder"});
  else if (const std::string refusal = library == Library::cutlass ? cutlass_refusal(surroundings) : ""; !refusal.empty())
    findings.push_back({name, Level::warning, refusal, std::string{get_cutlass}});
  else if (!path.ends_with(file_names(library).front()))
    findings.push_back({name, Level::info, path + ", of an older major version",
                        "install " + file_names(library).front() + " for comparable numbers"});
  else findings.push_back({name, Level::ok, path, ""});
}

}  // namespace

Level worst(const std::vector<Diagnosis>& findings) {
  Level level = Level::ok;
  for (const Diagnosis& finding : findings) level = std::max(level, finding.level);
  return level;
}

std::vector<fs::path> toolkit_homes(const fs::path& root) {
  std::vector<fs::path> homes;
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"})
    if (const char* home = std::getenv(variable); home != nullptr && *home != '\0')
      homes.emplace_back(root / fs::path{home}.relative_path());
  homes.push_back(root / "usr/local/cuda");
  return homes;
}

std::vector<Diagnosis> examine(const Machine& machine, const Surroundings& surroundings) {
  Findings findings;
  std::error_code unreadable;
  // Without it most of the rest would be wrong: no driver, no memory, no CUDA device.
  if (!fs::exists(surroundings.root / "proc/self", unreadable) && !unreadable)
    return {{"/proc", Level::problem, "not mounted; aisp needs it to start its workers, and to examine this machine",
             "mount -t proc proc /proc"}};
  examine_driver(machine, findings);
  examine_runtime(machine, findings);
  examine_toolkit(surroundings, findings);
  examine_assembler(surroundings, findings);
  examine_gpu_list(machine, surroundings, findings);
  examine_peers(machine, findings);
  examine_host(machine, surroundings, findings);
  for (auto i = static_cast<int>(Library::none) + 1; i <= static_cast<int>(last_library); ++i) {
    const auto library = static_cast<Library>(i);
    // Without a GPU the driver's own library is not missed.
    if (library != Library::nvml || !machine.gpus.empty()) examine_library(library, surroundings, findings);
  }
  return findings;
}

}  // namespace aisp::machine
