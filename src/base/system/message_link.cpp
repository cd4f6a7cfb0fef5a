// SPDX-License-Identifier: Apache-2.0
#include "base/system/message_link.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/error.hpp"
#include "base/system/clock.hpp"

namespace aisp::base {
namespace {

constexpr int waiting_connections = 1024;

struct MessageHead {
  std::uint32_t what_bytes = 0, body_bytes = 0;
  char kind = 0;
};

struct LocalAddress {
  sockaddr_un bytes{};
  socklen_t size = 0;
};

// The zero in front says that the name is no file.
LocalAddress address_of(std::string_view name) {
  LocalAddress address;
  address.bytes.sun_family = AF_UNIX;
  const std::size_t length = std::min(name.size(), sizeof address.bytes.sun_path - 1);
  std::memcpy(address.bytes.sun_path + 1, name.data(), length);
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return address;
}

const sockaddr* pointer(const LocalAddress& address) { return reinterpret_cast<const sockaddr*>(&address.bytes); }

[[noreturn]] void no_way(const char* what, const std::string& name) {
  throw Error{Exit::unfit, std::string{"cannot "} + what + " the local socket " + name + ": " + std::strerror(errno)};
}

}  // namespace

Descriptor listen_at(const std::string& name) {
  const LocalAddress address = address_of(name);
  Descriptor listener{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  if (::bind(listener.get(), pointer(address), address.size) != 0 || ::listen(listener.get(), waiting_connections) != 0)
    no_way("listen at", name);
  return listener;
}

Descriptor connect_to(const std::string& name) {
  const LocalAddress address = address_of(name);
  Descriptor connection{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  if (::connect(connection.get(), pointer(address), address.size) != 0) no_way("reach", name);
  return connection;
}

MessageLink::MessageLink(Descriptor descriptor) : descriptor_{std::move(descriptor)} {
  ::fcntl(descriptor_.get(), F_SETFL, O_NONBLOCK);
}

void MessageLink::send(const Message& message) {
  MessageHead head{};
  head.what_bytes = static_cast<std::uint32_t>(message.what.size());
  head.body_bytes = static_cast<std::uint32_t>(message.body.size());
  head.kind = message.kind;
  char bytes[sizeof head] = {};
  std::memcpy(bytes, &head, sizeof head);
  unsent_.append(bytes, sizeof head).append(message.what).append(message.body);
  write_some();
}

void MessageLink::write_some() {
  while (open() && !unsent_.empty()) {
    const ssize_t count = ::send(descriptor_.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    // The messages that came before the other end closed are still to be read.
    if (count <= 0) return unsent_.clear();
    unsent_.erase(0, static_cast<std::size_t>(count));
  }
}

std::optional<Message> MessageLink::next() {
  MessageHead head;
  if (received_.size() < sizeof head) return std::nullopt;
  std::memcpy(&head, received_.data(), sizeof head);
  const std::size_t bytes = std::size_t{head.what_bytes} + head.body_bytes;
  if (bytes > longest_message_bytes) {
    close();
    return std::nullopt;
  }
  if (received_.size() < sizeof head + bytes) return std::nullopt;
  Message message{head.kind, received_.substr(sizeof head, head.what_bytes),
                  received_.substr(sizeof head + head.what_bytes, head.body_bytes)};
  received_.erase(0, sizeof head + bytes);
  return message;
}

std::vector<Message> MessageLink::move() {
  write_some();
  static thread_local std::array<char, 64 * 1024> buffer;
  std::vector<Message> messages;
  while (open()) {
    const ssize_t count = ::recv(descriptor_.get(), buffer.data(), buffer.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) break;
    if (count <= 0) {
      close();
      break;
    }
    received_.append(buffer.data(), static_cast<std::size_t>(count));
    while (std::optional<Message> message = next()) messages.push_back(std::move(*message));
  }
  return messages;
}

std::optional<Message> MessageLink::wait(double patience_s) {
  const double deadline_s = monotonic_s() + patience_s;
  for (;;) {
    if (std::optional<Message> message = next()) return message;
    const double left_s = deadline_s - monotonic_s();
    if (!open() || left_s <= 0) return std::nullopt;
    pollfd watched{descriptor_.get(), static_cast<short>(POLLIN | (has_unsent() ? POLLOUT : 0)), 0};
    ::poll(&watched, 1, static_cast<int>(std::min(left_s, 3600.0) * 1000) + 1);
    write_some();
    std::array<char, 4096> bytes;
    const ssize_t count = ::recv(descriptor_.get(), bytes.data(), bytes.size(), 0);
    if (count > 0) received_.append(bytes.data(), static_cast<std::size_t>(count));
    else if (count == 0 || (errno != EINTR && errno != EAGAIN)) close();
  }
}

}  // namespace aisp::base
