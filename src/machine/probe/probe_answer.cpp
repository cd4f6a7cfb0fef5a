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
  base::Child child{{.argv = {executable, command, std::to_string(base::Child::result_fd_in_child)}, .result_pipe = true}};
  std::string text;
  const auto take = [&](std::string_view part) { text += part; };
  if (!base::read_results(child, limit_s, "interrupted while the CUDA driver was asked", take)) {
    child.terminate(0.5);
    return {{}, "the CUDA driver did not answer within " + base::human_duration(limit_s), see_smi};
  }
  const std::optional<base::ExitState> state = child.wait(5);
  if (state && state->signalled)
    return {{}, "the CUDA driver crashed the process that asked it (" + state->text() + ")", see_smi};
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_object()) return {std::move(json), {}, {}};
  const std::string ending = state ? state->text() : std::string{"it hangs"};
  return {{}, "the process that asks the CUDA driver gave no answer (" + ending + ")", see_smi};
} catch (const base::Error& error) {
  if (error.status() == base::Exit::interrupted) throw;
  return {{}, error.what(), "check the limits on processes (ulimit -u) and the program's file"};
}

int write_answer(int fd, const nlohmann::json& answer) {
  const std::string text = answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return static_cast<int>(base::write_all(fd, text) == 0 ? base::Exit::good : base::Exit::failed);
}

}  // namespace aisp::machine
