#include "models/serve/http_server.h"

#include <microhttpd.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace lockstep::models {
namespace {

// A socket that listens, and its port.
struct Listener {
  int socket = -1;
  int64_t port = 0;
};

Listener Listen(const std::string& host, int64_t port) {
  const std::string place = StrCat("--host=", host, " --port=", port);
  addrinfo hints{.ai_flags = AI_PASSIVE, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  const std::string service = std::to_string(port);
  if (const int error = getaddrinfo(host.c_str(), service.c_str(), &hints, &found)) {
    throw InputError(StrCat(place, ": ", gai_strerror(error),
                            "; give an address of this machine, such as 127.0.0.1"));
  }
  Listener listener;
  int error = 0;
  for (const addrinfo* a = found; a != nullptr && listener.socket < 0; a = a->ai_next) {
    const int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    const int on = 1;
    if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (fd >= 0 && bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0) {
      listener.socket = fd;
      break;
    }
    error = errno;
    if (fd >= 0) close(fd);
  }
  freeaddrinfo(found);
  if (listener.socket < 0) {
    throw InputError(StrCat(place, ": cannot listen there: ", std::strerror(error),
                            error == EADDRINUSE ? "; choose another --port" : ""));
  }
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  char text[NI_MAXSERV] = "0";
  if (getsockname(listener.socket, reinterpret_cast<sockaddr*>(&address), &length) == 0) {
    getnameinfo(reinterpret_cast<sockaddr*>(&address), length, nullptr, 0, text, sizeof text,
                NI_NUMERICSERV);
  }
  listener.port = std::atoi(text);
  return listener;
}

bool ClientLeft(MHD_Connection* connection) {
  const MHD_ConnectionInfo* info =
      MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
  char byte;
  const ssize_t n = recv(info->connect_fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

// While it lives, libmicrohttpd does not take the time for which the client has to wait for the
// time of a client that stalls, which starts afterwards.
class Waiting {
 public:
  Waiting(MHD_Connection* connection, int64_t patience)
      : connection_(connection), patience_(static_cast<unsigned>(patience)) {
    MHD_set_connection_option(connection_, MHD_CONNECTION_OPTION_TIMEOUT, 0u);
  }
  ~Waiting() { MHD_set_connection_option(connection_, MHD_CONNECTION_OPTION_TIMEOUT, patience_); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  MHD_Connection* const connection_;
  const unsigned patience_;
};

// What is known of a request while it comes.
struct Incoming {
  ServerRequest request;
  bool too_large = false;
};

}  // namespace

class HttpServer::Impl {
 public:
  Impl(const ServerOptions& options, Handler handler)
      : max_body_(options.max_body),
        patience_(options.patience),
        handler_(std::move(handler)),
        listener_(Listen(options.host, options.port)) {
    daemon_ = MHD_start_daemon(
        MHD_USE_THREAD_PER_CONNECTION | MHD_USE_POLL_INTERNAL_THREAD | MHD_USE_ITC, 0, nullptr,
        nullptr, &Impl::OnAccess, this, MHD_OPTION_LISTEN_SOCKET, listener_.socket,
        MHD_OPTION_CONNECTION_LIMIT, static_cast<unsigned>(options.max_connections),
        MHD_OPTION_CONNECTION_TIMEOUT, static_cast<unsigned>(options.patience),
        MHD_OPTION_NOTIFY_COMPLETED, &Impl::OnCompleted, nullptr, MHD_OPTION_END);
    if (daemon_ == nullptr) {
      close(listener_.socket);
      throw IoError("libmicrohttpd cannot start its threads");
    }
  }

  ~Impl() {
    stopping_ = true;
    MHD_stop_daemon(daemon_);  // closes the listening socket, too
  }

  int64_t port() const { return listener_.port; }

 private:
  // A stream on its way to a client.
  struct Outgoing {
    const Impl* server;
    MHD_Connection* connection;
    std::unique_ptr<BodyStream> stream;
    std::string part = {};  // not written yet
  };

  static MHD_Result OnAccess(void* self, MHD_Connection* connection, const char* url,
                             const char* method, const char*, const char* data, size_t* size,
                             void** state) {
    try {
      return static_cast<Impl*>(self)->Access(connection, url, method, {data, *size}, size, state);
    } catch (const std::exception&) {  // as when memory runs out: this connection only
      return MHD_NO;
    }
  }

  static void OnCompleted(void*, MHD_Connection*, void** state, MHD_RequestTerminationCode) {
    delete static_cast<Incoming*>(*state);
    *state = nullptr;
  }

  // Called once with the headers, then with each part of the body, then once more.
  MHD_Result Access(MHD_Connection* connection, const char* url, const char* method,
                    std::string_view data, size_t* size, void** state) {
    if (*state == nullptr) {
      *state = new Incoming{{.method = method, .path = url}};
      return MHD_YES;
    }
    Incoming& incoming = *static_cast<Incoming*>(*state);
    if (!data.empty()) {
      *size = 0;
      std::string& body = incoming.request.body;
      incoming.too_large |= std::ssize(body) + std::ssize(data) > max_body_;
      // What is too large is read on, so that the client, which writes, gets to read why.
      if (incoming.too_large) {
        body.clear();
      } else {
        body += data;
      }
      return MHD_YES;
    }
    incoming.request.client_left = [this, connection] {
      return stopping_ || ClientLeft(connection);
    };
    ServerResponse response;
    if (incoming.too_large) {
      response = {.status = 413,
                  .body = StrCat(R"({"error": {"message": "the request has more than )", max_body_,
                                 R"( bytes", "type": "invalid_request_error"}})")};
    } else {
      const Waiting waiting(connection, patience_);
      response = handler_(incoming.request);
    }
    return Send(connection, std::move(response));
  }

  MHD_Result Send(MHD_Connection* connection, ServerResponse response) const {
    MHD_Response* sent = nullptr;
    if (response.stream) {
      std::unique_ptr<Outgoing> outgoing(
          new Outgoing{this, connection, std::move(response.stream)});
      sent = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16 << 10, &Impl::OnRead,
                                               outgoing.get(), &Impl::OnFreed);
      if (sent != nullptr) outgoing.release();
    } else {
      sent = MHD_create_response_from_buffer(response.body.size(), response.body.data(),
                                             MHD_RESPMEM_MUST_COPY);
    }
    if (sent == nullptr) return MHD_NO;
    MHD_add_response_header(sent, "Content-Type", response.type.c_str());
    MHD_add_response_header(sent, "Cache-Control", "no-store");
    const MHD_Result result =
        MHD_queue_response(connection, static_cast<unsigned>(response.status), sent);
    MHD_destroy_response(sent);
    return result;
  }

  static ssize_t OnRead(void* state, uint64_t, char* to, size_t most) {
    Outgoing& out = *static_cast<Outgoing*>(state);
    const Waiting waiting(out.connection, out.server->patience_);
    try {
      while (out.part.empty()) {
        if (out.server->stopping_ || ClientLeft(out.connection)) {
          return MHD_CONTENT_READER_END_WITH_ERROR;
        }
        std::optional<std::string> next = out.stream->Next();
        if (!next) return MHD_CONTENT_READER_END_OF_STREAM;
        out.part = std::move(*next);
      }
    } catch (const std::exception&) {
      return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    const size_t n = std::min(most, out.part.size());
    out.part.copy(to, n);
    out.part.erase(0, n);
    return static_cast<ssize_t>(n);
  }

  static void OnFreed(void* state) { delete static_cast<Outgoing*>(state); }

  const int64_t max_body_, patience_;
  const Handler handler_;
  const Listener listener_;
  MHD_Daemon* daemon_ = nullptr;
  std::atomic<bool> stopping_{false};
};

HttpServer::HttpServer(const ServerOptions& options, Handler handler)
    : impl_(std::make_unique<Impl>(options, std::move(handler))) {}
HttpServer::~HttpServer() = default;
int64_t HttpServer::port() const { return impl_->port(); }

}  // namespace lockstep::models
