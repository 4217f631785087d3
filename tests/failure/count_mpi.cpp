// This library counts a program's calls of Open MPI through the profiling interface. It is preloaded into every rank of
// the command. At the end rank 0 writes "messages bytes most_messages_of_a_rank most_communicators_of_a_rank" into
// $COUNT_FILE.
#include <mpi.h>

#include <cstdio>
#include <cstdlib>

namespace {
long messages = 0, bytes = 0, communicators = 0;
}

extern "C" {

int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  int size = 0;
  PMPI_Type_size(type, &size);
  ++messages;
  bytes += static_cast<long>(count) * size;
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}

int MPI_Comm_create_group(MPI_Comm comm, MPI_Group group, int tag, MPI_Comm* made) {
  ++communicators;
  return PMPI_Comm_create_group(comm, group, tag, made);
}

int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm* made) {
  ++communicators;
  return PMPI_Comm_split(comm, color, key, made);
}

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* made) {
  ++communicators;
  return PMPI_Comm_dup(comm, made);
}

int MPI_Finalize(void) {
  long mine[2] = {messages, bytes}, sum[2], each[2] = {messages, communicators}, most[2];
  const char* path = std::getenv("COUNT_FILE");
  int rank = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  PMPI_Reduce(mine, sum, 2, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
  PMPI_Reduce(each, most, 2, MPI_LONG, MPI_MAX, 0, MPI_COMM_WORLD);
  if (rank == 0 && path != nullptr) {
    std::FILE* file = std::fopen(path, "w");
    if (file != nullptr) {
      std::fprintf(file, "%ld %ld %ld %ld\n", sum[0], sum[1], most[0], most[1]);
      std::fclose(file);
    }
  }
  return PMPI_Finalize();
}
}
