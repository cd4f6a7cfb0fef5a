// SPDX-License-Identifier: Apache-2.0
#include "machine/doctor/tcgen05.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/build_info.hpp"
#include "base/error.hpp"
#include "base/system/files.hpp"
#include "base/system/process.hpp"
#include "base/text.hpp"
#include "machine/doctor/tcgen05_launch.hpp"
#include "machine/gpu_lock.hpp"
#include "machine/needs.hpp"
#include "machine/probe_answer.hpp"

namespace aisp::machine {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view smallest_program = R"(.version 9.0
.target TARGET
.address_size 64
.visible .entry probe() {
  .shared .align 4 .b32 address;
  .reg .b32 columns;
  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [address], 32;
  ld.shared.b32 columns, [address];
  tcgen05.dealloc.cta_group::1.sync.aligned.b32 columns, 32;
  ret;
}
)";

std::string program_for(std::string_view target) {
  std::string text{smallest_program};
  constexpr std::string_view mark = "TARGET";
  return text.replace(text.find(mark), mark.size(), target);
}

bool can_probe(const Gpu& gpu, std::string_view built) { return tcgen05_support(gpu).yes && has_specific_code(built, gpu.sm); }

std::string product_on(const Gpu& gpu) try {
  const base::FileLock lock = lock_gpu(gpu.uuid, "doctor");
  std::vector<float> c;
  cudaError_t status = cudaSetDevice(gpu.ordinal);
  if (status == cudaSuccess) status = multiply_by_tcgen05(c);
  if (status == cudaSuccess) return judge_product(c);
  return std::string{cudaGetErrorString(status)} + " (" + cudaGetErrorName(status) + ")";
} catch (const base::Error& error) {
  return error.what();
}

}  // namespace

std::vector<std::string> targets_with(Tcgen05 answer) {
  std::vector<std::string> targets;
  for (const int sm : chips_with(answer)) targets.push_back(sm_text(sm) + "a");
  return targets;
}

bool assembles_tcgen05(const fs::path& ptxas, std::string_view target, double limit_s) {
  const base::ScratchDirectory folder;
  const fs::path program = folder.path() / "probe.ptx";
  base::write_atomically(program, program_for(target));
  base::Child child{{.argv = {ptxas.string(), "--gpu-name", std::string{target}, program.string(), "-o", "/dev/null"}}};
  const std::optional<base::ExitState> state = child.wait(limit_s);
  if (!state) throw base::Error{base::Exit::unfit, ptxas.string() + " did not end within " + base::significant(limit_s) + " s"};
  return state->good();
}

std::optional<fs::path> find_assembler(const std::vector<fs::path>& homes) {
  for (const fs::path& home : homes)
    if (std::error_code error; fs::is_regular_file(home / "bin/ptxas", error)) return home / "bin/ptxas";
  return std::nullopt;
}

std::optional<std::string> ProductAnswers::of(int ordinal) const {
  if (!error.empty()) return error;
  const auto found = by_ordinal.find(ordinal);
  return found == by_ordinal.end() ? std::nullopt : std::optional{found->second};
}

ProductAnswers probe_tcgen05(const Machine& machine, std::string_view built, double limit_s, const std::string& executable) try {
  const auto can = [built](const Gpu& gpu) { return can_probe(gpu, built); };
  if (std::none_of(machine.gpus.begin(), machine.gpus.end(), can)) return {};
  const ProbeAnswer answer = ask_child("__probe_tcgen05", limit_s, executable);
  ProductAnswers products{.error = answer.error, .by_ordinal = {}};
  if (products.error.empty())
    for (const auto& gpu : answer.json.at("gpus")) products.by_ordinal[gpu.at("ordinal")] = gpu.at("error");
  return products;
} catch (const nlohmann::json::exception& error) {
  return {.error = std::string{"the probe gave an unreadable answer: "} + error.what(), .by_ordinal = {}};
}

int probe_tcgen05_main(int fd) {
  nlohmann::json gpus = nlohmann::json::array();
  for (const Gpu& gpu : probe_here().gpus)
    if (can_probe(gpu, base::build_info().cuda_architectures))
      gpus.push_back({{"ordinal", gpu.ordinal}, {"error", product_on(gpu)}});
  return write_answer(fd, {{"gpus", gpus}});
}

Answer tcgen05_answer(const Gpu& gpu, std::string_view built, const std::optional<std::string>& product) {
  Answer answer = tcgen05_support(gpu);
  if (!answer.yes) return answer;
  if (!has_specific_code(built, gpu.sm)) {
    const Obstacle lacking = lacking_code(built, gpu.sm);
    return {false, answer.why + ", but " + lacking.reason, lacking.advice};
  }
  if (!product) return answer;
  if (!product->empty()) return {false, answer.why + ", but a product on it failed: " + *product};
  return {true, answer.why + "; a product on it is right"};
}

}  // namespace aisp::machine
