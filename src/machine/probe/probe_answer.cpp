// SPDX-License-Identifier: Apache-2.0
#include "machine/probe/probe_answer.hpp"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.hpp"
#include "base/system/clock.hpp"
#include "base/system/files.hpp"
#include "base/system/interrupt.hpp"
#include "base/system/places.hpp"
#include "base/system/process.hpp"
#include "base/text.hpp"

namespace aisp::machine {
namespace {

struct AnswerRead {
  std::string text;
  bool complete = false;  // the end came before the deadline
};

AnswerRead read_until(int descriptor, double deadline_s) {
  AnswerRead reading;
  std::string block(1 << 16, '\0');
  for (;;) {
    const double left_s = deadline_s - base::monotonic_s();
    if (left_s <= 0) return reading;
    if (base::interrupted()) throw base::Error{base::Exit::interrupted, "interrupted while the CUDA driver was asked"};
    pollfd ready{descriptor, POLLIN, 0};
    if (::poll(&ready, 1, static_cast<int>(left_s * 1e3) + 1) <= 0) continue;
    const ssize_t got = ::read(descriptor, block.data(), block.size());
    if (got > 0) reading.text.append(block, 0, static_cast<std::size_t>(got));
    if (got == 0) {
      reading.complete = true;
      return reading;
    }
    if (got < 0 && errno != EAGAIN && errno != EINTR) return reading;
  }
}

}  // namespace

ProbeAnswer ask_child(const std::string& command, double limit_s, const std::string& executable) try {
  const std::string see_smi =
      "look at nvidia-smi and the kernel's log (dmesg); " + base::script("reset-gpu.sh") + " or a reboot may help";
  base::Child child{{.argv = {executable, command, std::to_string(base::Child::result_fd_in_child)}, .result_pipe = true}};
  const AnswerRead reading = read_until(child.result_fd(), base::monotonic_s() + limit_s);
  if (!reading.complete) {
    child.terminate(0.5);
    return {{}, "the CUDA driver did not answer within " + base::human_duration(limit_s), see_smi};
  }
  const std::optional<base::ExitState> state = child.wait(5);
  if (state && state->signalled)
    return {{}, "the CUDA driver crashed the process that asked it (" + state->text() + ")", see_smi};
  nlohmann::json json = nlohmann::json::parse(reading.text, nullptr, false);
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
