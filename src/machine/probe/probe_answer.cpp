// SPDX-License-Identifier: Apache-2.0
#include "machine/probe/probe_answer.hpp"

#include "base/error.hpp"
#include "base/system/files.hpp"
#include "base/system/places.hpp"
#include "base/system/process.hpp"
#include "base/text.hpp"

namespace aisp::machine {

ProbeAnswer ask_child(const std::string& command, double limit_s, const std::string& executable) try {
  const std::string see_smi =
      "look at nvidia-smi and the kernel's log (dmesg); " + base::script("reset-gpu.sh") + " or a reboot may help";
  std::string text;
  const base::ChildOutcome outcome = base::ask({.executable = executable,
                                                .command = command,
                                                .limit_s = limit_s,
                                                .interrupted = "interrupted while the CUDA driver was asked"},
                                               [&](std::string_view part) { text += part; });
  if (!outcome.in_time) return {{}, "the CUDA driver did not answer within " + base::human_duration(limit_s), see_smi};
  if (outcome.end && outcome.end->signalled)
    return {{}, "the CUDA driver crashed the process that asked it (" + outcome.end_text() + ")", see_smi};
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_object()) return {std::move(json), {}, {}};
  return {{}, "the process that asks the CUDA driver gave no answer (" + outcome.end_text() + ")", see_smi};
} catch (const base::Error& error) {
  if (error.status() == base::Exit::interrupted) throw;
  return {{}, error.what(), "check the limits on processes (ulimit -u) and the program's file"};
}

int write_answer(int fd, const nlohmann::json& answer) {
  const std::string text = answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return static_cast<int>(base::write_all(fd, text) == 0 ? base::Exit::good : base::Exit::failed);
}

}  // namespace aisp::machine
