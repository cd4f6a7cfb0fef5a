// SPDX-License-Identifier: Apache-2.0
#include "suite/suite.hpp"

#include <fmt/format.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/system/clock.hpp"
#include "base/system/files.hpp"
#include "base/system/interrupt.hpp"
#include "base/text.hpp"
#include "evidence/json.hpp"
#include "machine/gpu_lock.hpp"
#include "run/child/child.hpp"
#include "run/wire/blank.hpp"

namespace aisp::suite {
namespace {

using base::Error;
using base::Exit;
using base::Message;

constexpr double guest_look_s = 0.05, between_signs_s = 0.5, guest_idle_s = 1;
constexpr double welcome_reserve_s = 10;  // process 0 may have begun to wait later
constexpr double guest_parting_s = 10;    // for process 0's end after its last word, or after an interrupt
constexpr std::size_t guest_log_bytes = std::size_t{4} << 20;

// One rank of a pair, in a thread of its own.
class HostedRank {
 public:
  explicit HostedRank(const Message& order) : order_(nlohmann::json::parse(order.body).get<run::RankOrder>()) {
    order_.request.scratch_parent = scratch_.path().string();
    order_.request.run_folder.clear();
    supervision_.log = scratch_.path() / "log";
    supervision_.log_name = order.what;
    supervision_.log_limit_bytes = guest_log_bytes;
    supervision_.waits = [this] { return waits_.load(); };
    supervision_.alone = [this] { return alone_.load(); };
    supervision_.interrupted = [this] { return stopped_ || base::interrupted(); };
    thread_ = std::thread{[this] {
      outcome_ = run();
      ended_ = true;
    }};
  }
  ~HostedRank() {
    stopped_ = true;
    thread_.join();
  }

  bool ended() const { return ended_; }
  void hear(const Message& message) {
    if (message.kind == run::rank_waits) waits_ = message.what == "yes";
    if (message.kind == run::rank_alone) alone_ = true;
    if (message.kind == run::rank_stops) stopped_ = true;
  }
  void report(base::MessageLink& link) {
    if (const auto log = base::try_read_file(supervision_.log, guest_log_bytes); log) link.send({run::rank_log, {}, *log});
    outcome_.result.variants.clear();
    link.send({run::rank_ended, {}, evidence::json_text(nlohmann::json(outcome_))});
  }

 private:
  run::SupervisedRun run() const {
    const pair::Entry& entry = run::find_pair(order_.request.target);
    std::optional<base::FileLock> lock;
    try {
      if (order_.lock_gpu) lock = machine::lock_gpu(order_.request.gpus.front(), "a rank of " + order_.request.target);
    } catch (const Error& error) {
      run::SupervisedRun outcome{.result = run::blank_result(entry, order_.request)};
      outcome.result.status = evidence::Status::crashed;
      outcome.result.complete = false;
      outcome.result.reason = error.what();
      return outcome;
    }
    return run::supervise(entry, order_.request, supervision_);
  }

  base::ScratchDirectory scratch_;
  run::RankOrder order_;
  run::Supervision supervision_;
  std::atomic<bool> waits_{false}, alone_{false}, stopped_{false}, ended_{false};
  run::SupervisedRun outcome_;
  std::thread thread_;
};

void host_rank(base::MessageLink& link, const Message& order) {
  HostedRank rank{order};
  double sign_s = 0;
  while (!rank.ended() && link.open()) {
    if (const std::optional<Message> message = link.wait(guest_look_s)) rank.hear(*message);
    if (base::monotonic_s() - sign_s < between_signs_s) continue;
    sign_s = base::monotonic_s();
    link.send({run::rank_works, {}, {}});
  }
  if (rank.ended()) rank.report(link);
}

// A launcher may end all processes when the first has ended with another status than 0, so process 0 ends first.
Exit status_at_end(const Message& end, base::MessageLink& link) {
  const double deadline_s = base::monotonic_s() + guest_parting_s;
  while (link.open() && base::monotonic_s() < deadline_s) link.wait(guest_look_s);
  return static_cast<Exit>(std::stoi(end.body));
}

}  // namespace

Exit serve(const std::string& address, const std::string& secret, const run::Process& own, double patience_s) {
  const std::string place = fmt::format("process 0 at {}", address.substr(address.find(':') + 1));
  base::MessageLink link;
  try {
    link = base::MessageLink{base::connect_to(address, patience_s)};
  } catch (const Error& error) {
    throw Error{Exit::unfit,
                fmt::format("{} {} (tried for {}); start process 0 too, or say where it is with --rendezvous HOST:PORT",
                            run::name_of(own), error.what(), base::human_duration(patience_s))};
  }
  link.send({run::world_hello, secret, nlohmann::json(own).dump()});
  std::optional<Message> message = link.wait(patience_s + welcome_reserve_s);
  if (!message)
    throw Error{Exit::unfit, fmt::format("{} {} {}: another process {} was there first, or what listens there is of another job",
                                         place, link.open() ? "did not answer" : "turned away", run::name_of(own), own.index)};
  base::install_interrupt_handlers();
  double interrupted_s = 0;
  for (;; message = link.wait(guest_idle_s)) {
    if (message && message->kind == run::world_end) return status_at_end(*message, link);
    if (message && message->kind == run::rank_begins) host_rank(link, *message);
    if (!link.open()) throw Error{Exit::unfit, fmt::format("{} of this run is gone, and {} ends", place, run::name_of(own))};
    if (!base::interrupted()) continue;
    if (interrupted_s == 0) interrupted_s = base::monotonic_s();
    if (base::monotonic_s() - interrupted_s > guest_parting_s) return Exit::interrupted;
  }
}

}  // namespace aisp::suite
