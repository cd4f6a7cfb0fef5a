// SPDX-License-Identifier: Apache-2.0
#include "run/parent/world.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "base/json_fields.hpp"
#include "base/system/clock.hpp"
#include "base/system/files.hpp"
#include "base/text.hpp"
#include "evidence/json.hpp"
#include "run/wire/blank.hpp"

namespace aisp::run {

using base::Error;
using base::Exit;

AISP_DESCRIBE(Process, index, count, host, clock, build, command_line, gpus)

void to_json(nlohmann::json& json, const Process& process) {
  json = base::json_of(process);
  json["gpu"] = process.gpu;
}
void from_json(const nlohmann::json& json, Process& process) {
  base::JsonReader reader{json, "process"};
  describe(process, reader);
  json.at("gpu").get_to(process.gpu);
}

void to_json(nlohmann::json& json, const RankOrder& order) { json = {{"request", order.request}, {"lock_gpu", order.lock_gpu}}; }
void from_json(const nlohmann::json& json, RankOrder& order) {
  json.at("request").get_to(order.request);
  json.at("lock_gpu").get_to(order.lock_gpu);
}

void to_json(nlohmann::json& json, const SupervisedRun& outcome) {
  json = {{"result", outcome.result}, {"interrupted", outcome.interrupted}, {"stopped", outcome.stopped}};
}
void from_json(const nlohmann::json& json, SupervisedRun& outcome) {
  json.at("result").get_to(outcome.result);
  json.at("interrupted").get_to(outcome.interrupted);
  json.at("stopped").get_to(outcome.stopped);
}

namespace {

constexpr double rank_look_s = 0.05;
constexpr double rank_silence_limit_s = 30, least_rank_silence_limit_s = 5;

SupervisedRun lost_rank(const pair::Entry& entry, const Request& request, const std::string& why) {
  SupervisedRun outcome{.result = blank_result(entry, request)};
  outcome.result.status = evidence::Status::crashed;
  outcome.result.complete = false;
  outcome.result.reason = why;
  return outcome;
}

std::string shown_words(const std::vector<std::string>& command_line) {
  return base::one_line(base::join(command_line, " "), 300);
}

// The links to other processes, which stay open until this one has ended: a launcher may end all when the first of them has.
std::vector<base::MessageLink>& open_until_exit() {
  static std::vector<base::MessageLink> links;
  return links;
}

}  // namespace

std::string name_of(const Process& process) { return fmt::format("process {} on {}", process.index, process.host); }

int machine_count(const std::vector<Process>& processes, int ranks) {
  std::set<std::string> clocks;
  for (int rank = 0; rank < ranks; ++rank) clocks.insert(processes[static_cast<std::size_t>(rank)].clock);
  return static_cast<int>(clocks.size());
}

World::World(std::string address, std::string secret, Process own, double patience_s)
    : address_{std::move(address)}, secret_{std::move(secret)} {
  const auto count = static_cast<std::size_t>(own.count);
  processes_.resize(count);
  links_.resize(count);
  processes_.front() = std::move(own);
  try {
    listener_ = base::listen_at(address_);
  } catch (const Error& error) {
    throw Error{error.status(),
                fmt::format("process 0 {}; give all processes another place to meet with --rendezvous HOST:PORT", error.what())};
  }
  try {
    gather(patience_s);
  } catch (const Error& error) {
    end(error.status());
    throw;
  }
  for (base::MessageLink& link : links_)
    if (link.open()) link.send({world_welcome, {}, {}});
}

std::vector<int> World::missing() const {
  std::vector<int> numbers;
  for (std::size_t i = 1; i < links_.size(); ++i)
    if (!links_[i].open()) numbers.push_back(static_cast<int>(i));
  return numbers;
}

void World::gather(double patience_s) {
  const double deadline_s = base::monotonic_s() + patience_s;
  std::vector<base::MessageLink> strangers;
  std::size_t turned_away = 0;
  while (!missing().empty()) {
    if (base::monotonic_s() > deadline_s)
      throw Error{Exit::unfit, fmt::format("{} of {} processes did not come to {} within {}: {}{}; start as many as the launcher "
                                           "counts, or wait longer with --rendezvous-timeout",
                                           missing().size(), processes_.size(), address_.substr(address_.find(':') + 1),
                                           base::human_duration(patience_s), fmt::join(missing(), ", "),
                                           turned_away == 0 ? "" : fmt::format(" ({} of another job turned away)", turned_away))};
    pollfd watched{listener_.get(), POLLIN, 0};
    ::poll(&watched, 1, static_cast<int>(rank_look_s * 1000));
    if (base::Descriptor connection{::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)}; connection.open())
      strangers.emplace_back(std::move(connection));
    for (base::MessageLink& stranger : strangers)
      if (!greet(stranger)) ++turned_away;
    std::erase_if(strangers, [](const base::MessageLink& link) { return !link.open(); });
  }
}

// Returns false for one that does not know the secret.
bool World::greet(base::MessageLink& stranger) {
  const std::vector<base::Message> messages = stranger.move();
  if (messages.empty()) return true;
  Process process;
  try {
    if (messages.front().kind != world_hello || messages.front().what != secret_) throw Error{Exit::unfit, "a stranger"};
    const nlohmann::json told = evidence::parse_json(messages.front().body, "a process");
    told.at("index").get_to(process.index);
    told.at("host").get_to(process.host);
    told.at("build").get_to(process.build);
    // The rest may have another form in another build.
    if (process.build == processes_.front().build) process = told.get<Process>();
  } catch (const std::exception&) {
    stranger.close();
    return false;
  }
  take(std::move(process), std::move(stranger));
  return true;
}

void World::take(Process process, base::MessageLink link) {
  const Process& first = processes_.front();
  const auto refuse = [&](Exit status, const std::string& why) {
    refused_ = std::move(link);
    throw Error{status, why};
  };
  if (process.build != first.build)
    refuse(Exit::unfit, fmt::format("{} is another build of aisp ({}) than process 0 ({}); start one build everywhere",
                                    name_of(process), process.build, first.build));
  const auto place = static_cast<std::size_t>(process.index);
  if (process.count != first.count || process.index < 1 || place >= links_.size())
    refuse(Exit::unfit,
           fmt::format("{} counts {} processes, process 0 {}; start all with one launcher, which tells them the same",
                       name_of(process), process.count, first.count));
  if (links_[place].open())
    refuse(Exit::unfit,
           fmt::format("two processes have number {}: one on {}, one on {}; start all with one launcher, which numbers "
                       "them",
                       process.index, processes_[place].host, process.host));
  if (process.command_line != first.command_line)
    refuse(Exit::usage,
           fmt::format("{} was started as '{}', process 0 as '{}'; give all processes the same arguments, or run each "
                       "by itself with --rendezvous none",
                       name_of(process), shown_words(process.command_line), shown_words(first.command_line)));
  processes_[place] = std::move(process);
  links_[place] = std::move(link);
}

SupervisedRun World::supervise(const pair::Entry& entry, const Request& request, const Supervision& supervision) try {
  return follow(entry, request, supervision);
} catch (const std::exception& error) {
  return lost_rank(entry, request,
                   fmt::format("{}: {}", name_of(processes_[static_cast<std::size_t>(request.rank)]), error.what()));
}

SupervisedRun World::follow(const pair::Entry& entry, const Request& request, const Supervision& supervision) {
  const auto place = static_cast<std::size_t>(request.rank);
  const std::string name = name_of(processes_[place]);
  base::MessageLink& link = links_[place];
  if (!link.open()) return lost_rank(entry, request, name + " is gone");
  const std::vector<std::string>& seen = processes_.front().gpus;
  const bool lock_gpu = !request.gpus.empty() && std::ranges::find(seen, request.gpus.front()) == seen.end();
  link.send({rank_begins, supervision.log_name, nlohmann::json(RankOrder{request, lock_gpu}).dump()});
  const double limit_s = std::max(rank_silence_limit_s * request.timeout_multiplier, least_rank_silence_limit_s);
  double heard_s = base::monotonic_s();
  bool waits = false, told = false;
  for (;;) {
    const std::optional<base::Message> message = link.wait(rank_look_s);
    const double now_s = base::monotonic_s();
    if (message) heard_s = now_s;
    if (message && message->kind == rank_log) base::write_atomically(supervision.log, message->body);
    if (message && message->kind == rank_ended) {
      SupervisedRun outcome = evidence::parse_json(message->body, name).get<SupervisedRun>();
      if (outcome.interrupted && !supervision.interrupted()) return lost_rank(entry, request, name + " was interrupted");
      return outcome;
    }
    if (!link.open()) return lost_rank(entry, request, name + " is gone");
    if (now_s - heard_s > limit_s) {
      link.close();
      return lost_rank(entry, request, fmt::format("{} did not answer for {:g} s and is left out from here on", name, limit_s));
    }
    if (std::exchange(waits, supervision.waits()) != waits) link.send({rank_waits, waits ? "yes" : "no", {}});
    if (told) continue;
    const bool stop = supervision.interrupted();
    told = stop || supervision.alone();
    if (told) link.send({stop ? rank_stops : rank_alone, {}, {}});
  }
}

void World::end(Exit status) {
  if (std::exchange(ended_, true)) return;
  links_.push_back(std::move(refused_));
  for (base::MessageLink& link : links_) {
    link.move();  // a connection that is closed with unread messages takes unsent ones with it
    link.send({world_end, {}, std::to_string(static_cast<int>(status))});
  }
  std::ranges::move(links_, std::back_inserter(open_until_exit()));
  links_.clear();
}

}  // namespace aisp::run
