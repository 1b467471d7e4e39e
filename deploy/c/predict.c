/* Answers with an exported model, by TensorFlow's C library alone:  predict SAVED_MODEL [OPERATIONS.so] NAME=VALUE...
 * Each NAME=VALUE is a row of an input: text='He left.', choices='one<tab>two', input_ids='2 14 3', or '2 14 3;2 9 3'
 * if a row has several choices. Prints the outputs by name as JSON. TF_CPP_MIN_LOG_LEVEL=3 silences TensorFlow. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tensorflow/c/c_api.h"
enum { INPUTS = 1, OUTPUTS = 2, MOST = 64 };             /* fields of a SignatureDef, and the most tensors of each */
typedef struct { const unsigned char *at, *end; } Bytes; /* of a protocol buffer; `at` is NULL for a missing field */
static void fail(const char *where, const char *what) {
    fprintf(stderr, "error: %s: %.*s\n", where, (int)strcspn(what, "\n"), what);
    exit(1);
}
static size_t varint(const unsigned char **at) {
    size_t value = **at & 127;
    for (int shift = 7; *(*at)++ & 128; shift += 7) value |= (size_t)(**at & 127) << shift;
    return value;
}
/* Returns what the nth field of this number holds. TensorFlow itself wrote the message, so it is not broken. */
static Bytes field(Bytes message, size_t number, int nth) {
    while (message.at < message.end) {
        size_t key = varint(&message.at), kind = key & 7, size = kind == 1 ? 8 : 4;
        const unsigned char *start = message.at;
        if (kind == 0 || kind == 2) size = varint(&message.at);
        if (kind != 0) start = message.at, message.at += size;
        if (key >> 3 == number && nth-- == 0) return (Bytes){start, message.at};
    }
    return (Bytes){NULL, NULL};
}
static char *string(Bytes text) { return strndup((const char *)text.at, text.end - text.at); }
/* Makes the tensor [rows], [rows, items] or [rows, groups, items] of the arguments NAME=VALUE. */
static TF_Tensor *read_rows(const char *name, TF_DataType type, int rank, char **arguments) {
    const char *separators = rank == 1 ? "" : type == TF_STRING ? "\t" : rank == 2 ? " " : " ;";
    int64_t rows = 0, groups = 0, total = 0, items = 0, groups_of_row = 0, uneven = 0;
    char **values = NULL, *end;
    for (size_t length = strlen(name); *arguments; arguments++) {
        if (strncmp(*arguments, name, length) || (*arguments)[length] != '=') continue;
        for (char *at = *arguments + length + 1, last = 1; last; *at++ = 0) {
            values = realloc(values, (total + 1) * sizeof *values);
            values[total++] = at;
            at += strcspn(at, separators);
            last = *at;
            if (last && last != ';') continue;
            items = groups++ ? items : total; /* the first group and the first row decide */
            uneven |= total != groups * items;
        }
        groups_of_row = rows++ ? groups_of_row : groups;
        uneven |= groups != rows * groups_of_row;
    }
    if (!rows || uneven) fail(name, rows ? "expected rows of the same length" : "expected NAME=VALUE of this input");
    int64_t shape[] = {rows, rank == 3 ? groups_of_row : items, items};
    TF_Tensor *tensor = TF_AllocateTensor(type, shape, rank, total * (type == TF_STRING ? sizeof(TF_TString) : 4));
    for (int64_t i = 0; i < total; i++) {
        TF_TString *text = (TF_TString *)TF_TensorData(tensor) + i;
        if (type == TF_STRING) TF_StringInit(text), TF_StringCopy(text, values[i], strlen(values[i]));
        else ((int *)TF_TensorData(tensor))[i] = (int)strtol(values[i], &end, 10);
        if (type != TF_STRING && (end == values[i] || *end)) fail(name, "expected whole numbers, one space between");
    }
    return tensor;
}
static void print_text(const TF_TString *text) {
    const char *at = TF_StringGetDataPointer(text), *end = at + TF_StringGetSize(text);
    for (printf("\""); at < end; at++) printf((unsigned char)*at < 32 || strchr("\"\\", *at) ? "\\u%04x" : "%c", *at);
    printf("\"");
}
/* Prints a tensor from value i on, along the axes from this one; returns the number of the next value. */
static int64_t print_values(const TF_Tensor *tensor, int axis, int64_t i) {
    const void *data = TF_TensorData(tensor);
    if (axis < TF_NumDims(tensor)) {
        printf("[");
        for (int64_t k = 0; k < TF_Dim(tensor, axis); k++) {
            if (k) printf(", ");
            i = print_values(tensor, axis + 1, i);
        }
        return printf("]"), i;
    }
    if (TF_TensorType(tensor) == TF_FLOAT) printf("%.9g", ((const float *)data)[i]);
    else if (TF_TensorType(tensor) == TF_INT32) printf("%d", ((const int *)data)[i]);
    else if (TF_TensorType(tensor) == TF_BOOL) printf(((const char *)data)[i] ? "true" : "false");
    else if (TF_TensorType(tensor) == TF_STRING) print_text((const TF_TString *)data + i);
    else fail("an output", "expected texts, float32, int32 or booleans");
    return i + 1;
}
int main(int count, char **arguments) {
    if (count < 3) fail("expected", "predict SAVED_MODEL [OPERATIONS.so] NAME=VALUE...");
    const char *tag = "serve", *names[3][MOST];
    TF_Output places[3][MOST];
    TF_Tensor *tensors[3][MOST];
    TF_Status *status = TF_NewStatus();
    TF_Graph *graph = TF_NewGraph();
    TF_Buffer *buffer = TF_NewBuffer();
    if (!strchr(arguments[2], '=') && !TF_LoadLibrary(arguments[2], status)) fail(arguments[2], TF_Message(status));
    TF_Session *session =
        TF_LoadSessionFromSavedModel(TF_NewSessionOptions(), NULL, arguments[1], &tag, 1, graph, buffer, status);
    if (!session) fail(arguments[1], TF_Message(status));
    Bytes meta_graph = {buffer->data, (const unsigned char *)buffer->data + buffer->length}, signature, entry;
    for (int i = 0; (signature = field(meta_graph, 5, i)).at; i++)
        if (!strcmp(string(field(signature, 1, 0)), "serving_default")) break;
    if (!signature.at) fail(arguments[1], "expected a signature serving_default");
    int counts[3] = {0};
    for (int kind = INPUTS; kind <= OUTPUTS; kind++)
        for (; counts[kind] < MOST && (entry = field(field(signature, 2, 0), kind, counts[kind])).at; counts[kind]++) {
            Bytes info = field(entry, 2, 0);
            int i = counts[kind], index = 0, rank = 0;
            char place[256] = "";
            sscanf(string(field(info, 1, 0)), "%255[^:]:%d", place, &index);
            while (field(field(info, 3, 0), 2, rank).at) rank++;
            names[kind][i] = string(field(entry, 1, 0));
            places[kind][i] = (TF_Output){TF_GraphOperationByName(graph, place), index};
            if (kind == INPUTS) tensors[kind][i] = read_rows(names[kind][i], *field(info, 2, 0).at, rank, arguments);
        }
    TF_SessionRun(session, NULL, places[INPUTS], tensors[INPUTS], counts[INPUTS], places[OUTPUTS], tensors[OUTPUTS],
                  counts[OUTPUTS], NULL, 0, NULL, status);
    if (TF_GetCode(status) != TF_OK) fail("request", TF_Message(status));
    for (int i = 0; i < counts[OUTPUTS]; i++) {
        printf("%s\"%s\": ", i ? ", " : "{", names[OUTPUTS][i]);
        print_values(tensors[OUTPUTS][i], 0, 0);
    }
    printf("}\n");
}
