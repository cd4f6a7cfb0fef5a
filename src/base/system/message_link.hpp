// SPDX-License-Identifier: Apache-2.0
// Whole messages over a stream socket: of this machine, or TCP.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/system/files.hpp"

namespace aisp::base {

struct Message {
  char kind = 0;
  std::string what, body;
};
inline constexpr std::size_t longest_message_bytes = std::size_t{16} << 20;

// An address is the name of a socket of this machine, which is no file, or "tcp:HOST:PORT". Both functions throw base::Error
// (unfit), which says why. A listener listens on all interfaces, unless HOST is the loopback.
Descriptor listen_at(const std::string& address);
// Tries again until `patience_s` is over: the other end may not listen yet.
Descriptor connect_to(const std::string& address, double patience_s = 0);

// One end of a connection. Sending never waits for the other end's reading: what it does not take yet stays in memory.
class MessageLink {
 public:
  MessageLink() = default;
  explicit MessageLink(Descriptor descriptor);

  bool open() const { return descriptor_.get() >= 0; }
  int descriptor() const { return descriptor_.get(); }
  void close() { descriptor_.reset(); }
  void send(const Message& message);
  bool has_unsent() const { return !unsent_.empty(); }
  // Writes and reads as far as possible without waiting, and returns the messages that are complete. Closes the link when the
  // other end has, or when what comes is no message.
  std::vector<Message> move();
  // Sends everything and waits for the next message; nothing if the other end closes, or none comes within `patience_s`.
  std::optional<Message> wait(double patience_s);

 private:
  void write_some();
  std::optional<Message> next();

  Descriptor descriptor_;
  std::string unsent_, received_;
};

}  // namespace aisp::base
