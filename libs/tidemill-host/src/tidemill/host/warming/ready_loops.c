/* Loops that were compiled when the wheel was built, as functions of Python.

   A call takes the first signature that its arguments fit, unpacks arrays without a copy, and
   releases the GIL while the loop runs. Signatures come with the strictest first. An array that
   cannot be written fits wherever one that can would and the loop does not write to it. Arguments
   that fit none go to `missing`. `loops.h` is generated: declarations, one thunk for each
   signature, and the tables SIGNATURES and LOOPS. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>
#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef union {
    int64_t i;
    double d;
    void *p;
} Word;

typedef struct {
    const char *fields; /* of each argument: `q`, `(qq)`, `2Cq`, `1Aq`; read-only `1cq`, `1aq`;
                           written by the loop `1Wq` instead of `1Cq`, `1Gq` of `1Aq` */
    const char *returned;
    int (*run)(void *out, void **raised, const Word *words);
} Signature;

typedef struct {
    const char *module, *name, *digest;
    int arguments, first, count;
} Loop;

#include "loops.h"

enum { OUT_BYTES_MAX = 1024, PARTS_MAX = 8 };

/* Memory of arrays that loops make, in the layout that compiled code has inlined. */

typedef struct {
    size_t references;
    void (*destroy)(void *data, size_t size, void *info);
    void *info, *data;
    size_t size;
    void *allocator;
} Memory;

void *NRT_MemInfo_alloc_aligned(size_t size, uint32_t alignment)
{
    Memory *made = malloc(sizeof(Memory) + size + alignment);
    if (made == NULL)
        return NULL;
    uintptr_t begin = (uintptr_t)(made + 1);
    begin += alignment ? (alignment - begin % alignment) % alignment : 0;
    *made = (Memory){1, NULL, NULL, (void *)begin, size, NULL};
    return made;
}

static void destroy_items(void *data, size_t size, void *destroy_each)
{
    (void)size;
    if (destroy_each != NULL)
        ((void (*)(void *))destroy_each)(data);
    free(data);
}

void *NRT_MemInfo_new_varsize_dtor(size_t size, void *destroy_each)
{
    Memory *made = malloc(sizeof(Memory));
    void *data = malloc(size);
    if (made == NULL || data == NULL) {
        free(made);
        free(data);
        return NULL;
    }
    *made = (Memory){1, destroy_items, destroy_each, data, size, NULL};
    return made;
}

void *NRT_MemInfo_varsize_alloc(Memory *memory, size_t size)
{
    memory->data = malloc(size);
    if (memory->data != NULL)
        memory->size = size;
    return memory->data;
}

void NRT_MemInfo_varsize_free(Memory *memory, void *data)
{
    free(data);
    if (memory->data == data)
        memory->data = NULL;
}

void NRT_MemInfo_call_dtor(Memory *memory)
{
    if (memory->destroy != NULL)
        memory->destroy(memory->data, memory->size, memory->info);
    free(memory);
}

static int kind_of(char code, char *kind)
{
    switch (code) {
    case 'b': *kind = 'b'; return 1;
    case 'B': *kind = 'u'; return 1;
    case 'i': *kind = 'i'; return 4;
    case 'I': *kind = 'u'; return 4;
    case 'q': *kind = 'i'; return 8;
    case 'Q': *kind = 'u'; return 8;
    default: *kind = 'f'; return 8;
    }
}

static int bind_scalar(char code, PyObject *given, Word *word)
{
    word->i = 0;
    if (PyBool_Check(given)) {
        word->i = given == Py_True;
        return code == 'b';
    }
    if (PyLong_Check(given)) {
        int overflow;
        word->i = PyLong_AsLongLongAndOverflow(given, &overflow);
        return code == 'q' && !overflow;
    }
    if (PyFloat_Check(given)) {
        word->d = PyFloat_AsDouble(given);
        return code == 'd';
    }
    if (!PyArray_CheckScalar(given) || PyArray_Check(given))
        return 0;
    char kind;
    int size = kind_of(code, &kind);
    PyArray_Descr *held = PyArray_DescrFromScalar(given);
    int fits = held->kind == kind && PyDataType_ELSIZE(held) == size;
    if (fits)
        PyArray_ScalarAsCtype(given, word);
    Py_DECREF(held);
    if (fits && code == 'i')
        word->i = *(int32_t *)word;
    return fits;
}

static int is_written(const char *field) { return field[1] == 'W' || field[1] == 'G'; }

static int holds(PyArrayObject *array, char code)
{
    char kind;
    int size = kind_of(code, &kind);
    return PyArray_DESCR(array)->kind == kind && PyArray_ITEMSIZE(array) == size;
}

static int bind_array(const char *field, PyObject *given, Word *words, int is_strict)
{
    if (!PyArray_Check(given))
        return 0;
    PyArrayObject *array = (PyArrayObject *)given;
    int dimensions = field[0] - '0', flags = PyArray_FLAGS(array);
    int layout = field[1];
    int needed = NPY_ARRAY_ALIGNED;
    if (layout == 'C' || layout == 'c' || layout == 'W')
        needed |= NPY_ARRAY_C_CONTIGUOUS;
    if (is_written(field) || (is_strict && isupper(layout)))
        needed |= NPY_ARRAY_WRITEABLE;
    if (!holds(array, field[2]) || (flags & needed) != needed ||
        PyArray_NDIM(array) != dimensions || PyArray_DESCR(array)->byteorder == NPY_OPPBYTE)
        return 0;
    npy_intp *shape = PyArray_DIMS(array), *strides = PyArray_STRIDES(array), items = 1;
    for (int i = 0; i < dimensions; i++) {
        words[5 + i].i = shape[i];
        words[5 + dimensions + i].i = strides[i];
        items *= shape[i];
    }
    words[0].p = NULL;
    words[1].p = given;
    words[2].i = items;
    words[3].i = PyArray_ITEMSIZE(array);
    words[4].p = PyArray_DATA(array);
    return 1;
}

static int bind(const Signature *signature, PyObject *const *arguments, Word *words, int is_strict)
{
    const char *field = signature->fields;
    for (; *field; arguments++) {
        if (*field >= '1' && *field <= '9') {
            if (!bind_array(field, *arguments, words, is_strict))
                return 0;
            words += 5 + 2 * (*field - '0');
            field += 3;
        } else if (*field == '(') {
            if (!PyTuple_Check(*arguments))
                return 0;
            Py_ssize_t at = 0, size = PyTuple_Size(*arguments);
            for (field++; *field != ')'; field++, at++, words++)
                if (at == size || !bind_scalar(*field, PyTuple_GetItem(*arguments, at), words))
                    return 0;
            if (at != size)
                return 0;
            field++;
        } else if (!bind_scalar(*field++, *arguments, words++))
            return 0;
    }
    return 1;
}

static void release(Memory *memory)
{
    if (__atomic_sub_fetch(&memory->references, 1, __ATOMIC_ACQ_REL) == 0)
        NRT_MemInfo_call_dtor(memory);
}

static void let_go(PyObject *capsule) { release(PyCapsule_GetPointer(capsule, NULL)); }

static int is_whole(PyArrayObject *given, const char *field, const Word *words)
{
    int dimensions = field[0] - '0';
    if (!holds(given, field[2]) || PyArray_NDIM(given) != dimensions ||
        PyArray_DATA(given) != words[4].p)
        return 0;
    for (int i = 0; i < dimensions; i++)
        if (PyArray_DIM(given, i) != words[5 + i].i ||
            PyArray_STRIDE(given, i) != words[5 + dimensions + i].i)
            return 0;
    return 1;
}

/* A new array keeps its memory, a part of an argument keeps that; a whole argument is itself. */
static PyObject *array_from(const char *field, const Word *words)
{
    int dimensions = field[0] - '0', is_frozen = islower(field[1]);
    PyObject *keeper;
    if (words[0].p == NULL) {
        keeper = words[1].p;
        if (keeper == NULL) {
            PyErr_SetString(PyExc_SystemError, "a loop gave an array of its constants");
            return NULL;
        }
        Py_INCREF(keeper);
        if (is_whole((PyArrayObject *)keeper, field, words))
            return keeper;
        is_frozen |= !(PyArray_FLAGS((PyArrayObject *)keeper) & NPY_ARRAY_WRITEABLE);
    } else if ((keeper = PyCapsule_New(words[0].p, NULL, let_go)) == NULL) {
        release(words[0].p);
        return NULL;
    }
    int type = field[2] == 'b' ? NPY_BOOL : field[2] == 'B' ? NPY_UINT8 : field[2] == 'i' ? NPY_INT32
        : field[2] == 'I' ? NPY_UINT32 : field[2] == 'q' ? NPY_INT64
        : field[2] == 'Q' ? NPY_UINT64 : NPY_FLOAT64;
    npy_intp shape[9], strides[9];
    for (int i = 0; i < dimensions; i++) {
        shape[i] = words[5 + i].i;
        strides[i] = words[5 + dimensions + i].i;
    }
    PyObject *made = PyArray_New(&PyArray_Type, dimensions, shape, type, strides, words[4].p, 0,
                                 is_frozen ? NPY_ARRAY_CARRAY_RO : NPY_ARRAY_CARRAY, NULL);
    if (made == NULL || PyArray_SetBaseObject((PyArrayObject *)made, keeper)) {
        if (made == NULL)
            Py_DECREF(keeper);
        Py_XDECREF(made);
        return NULL;
    }
    return made;
}

/* One value of the result, whose field is behind those that were read before. */
static PyObject *value(const char **codes, const char **from)
{
    char kind, code = *(*codes)++;
    if (code >= '1' && code <= '9') {
        *codes += 2;
        uintptr_t begin = ((uintptr_t)*from + 7) / 8 * 8;
        *from = (const char *)(begin + sizeof(Word) * (5 + 2 * (code - '0')));
        return array_from(*codes - 3, (const Word *)begin);
    }
    int size = kind_of(code, &kind);
    uintptr_t at = ((uintptr_t)*from + size - 1) / size * size;
    *from = (const char *)(at + size);
    void *held = (void *)at;
    switch (code) {
    case 'b': return PyBool_FromLong(*(uint8_t *)held);
    case 'B': return PyLong_FromLong(*(uint8_t *)held);
    case 'i': return PyLong_FromLong(*(int32_t *)held);
    case 'I': return PyLong_FromUnsignedLong(*(uint32_t *)held);
    case 'q': return PyLong_FromLongLong(*(int64_t *)held);
    case 'Q': return PyLong_FromUnsignedLongLong(*(uint64_t *)held);
    default: return PyFloat_FromDouble(*(double *)held);
    }
}

static PyObject *result(const char *codes, const char *out)
{
    if (*codes == 'n')
        Py_RETURN_NONE;
    if (*codes++ != '(') {
        codes--;
        return value(&codes, &out);
    }
    PyObject *parts[PARTS_MAX], *part, *made = NULL, *error = NULL, *why, *trace;
    Py_ssize_t count = 0;
    while (*codes != ')') /* all of them, since each array has memory to be let go */
        if ((part = value(&codes, &out)) != NULL)
            parts[count++] = part;
        else if (error == NULL)
            PyErr_Fetch(&error, &why, &trace);
        else
            PyErr_Clear();
    if (error == NULL)
        made = PyTuple_New(count);
    else
        PyErr_Restore(error, why, trace);
    for (Py_ssize_t i = 0; i < count; i++)
        if (made == NULL)
            Py_DECREF(parts[i]);
        else
            PyTuple_SetItem(made, i, parts[i]);
    return made;
}

/* What a loop raises is a pickle in its constants: the class, the arguments and the place. */
static void raise(int code, void *raised)
{
    struct {
        const char *data;
        int32_t size;
    } *told = raised;
    if (code != 1 || told == NULL) {
        PyErr_Format(PyExc_SystemError, "a loop ended with the code %d", code);
        return;
    }
    PyObject *pickle = PyImport_ImportModule("pickle");
    PyObject *read = pickle == NULL ? NULL
        : PyObject_CallMethod(pickle, "loads", "y#", told->data, (Py_ssize_t)told->size);
    PyObject *kind, *arguments, *place;
    if (read != NULL && PyArg_ParseTuple(read, "OOO", &kind, &arguments, &place))
        PyErr_SetObject(kind, arguments == Py_None ? NULL : arguments);
    Py_XDECREF(read);
    Py_XDECREF(pickle);
}

static PyObject *call(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    const Loop *loop = PyCapsule_GetPointer(self, NULL);
    Word words[WORDS_MAX];
    char out[OUT_BYTES_MAX] __attribute__((aligned(16)));
    int tries = count == loop->arguments ? 2 * loop->count : 0;
    for (int tried = 0; tried < tries; tried++) {
        int i = loop->first + tried % loop->count;
        if (bind(&SIGNATURES[i], arguments, words, tried < loop->count)) {
            void *raised = NULL;
            PyThreadState *state = PyEval_SaveThread();
            int code = SIGNATURES[i].run(out, &raised, words);
            PyEval_RestoreThread(state);
            if (code == 0)
                return result(SIGNATURES[i].returned, out);
            raise(code, raised);
            return NULL;
        }
    }
    PyObject *given = PyTuple_New(count);
    if (given == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_INCREF(arguments[i]);
        PyTuple_SetItem(given, i, arguments[i]);
    }
    PyObject *done = PyObject_CallObject((PyObject *)PyCapsule_GetContext(self), given);
    Py_DECREF(given);
    return done;
}

static PyMethodDef METHODS[sizeof(LOOPS) / sizeof(Loop)];

static PyObject *take(PyObject *self, PyObject *given)
{
    (void)self;
    const char *module, *name, *digest;
    PyObject *missing;
    if (!PyArg_ParseTuple(given, "sssO", &module, &name, &digest, &missing))
        return NULL;
    for (size_t i = 0; i < sizeof(LOOPS) / sizeof(Loop); i++) {
        if (strcmp(LOOPS[i].module, module) || strcmp(LOOPS[i].name, name))
            continue;
        if (strcmp(LOOPS[i].digest, digest))
            break; /* of another version */
        PyObject *which = PyCapsule_New((void *)&LOOPS[i], NULL, NULL);
        if (which == NULL)
            return NULL;
        Py_INCREF(missing); /* for as long as the process */
        PyCapsule_SetContext(which, missing);
        METHODS[i] = (PyMethodDef){LOOPS[i].name, (PyCFunction)(void (*)(void))call, METH_FASTCALL, NULL};
        PyObject *named = PyUnicode_FromString(module);
        PyObject *made = named == NULL ? NULL : PyCFunction_NewEx(&METHODS[i], which, named);
        Py_XDECREF(named);
        Py_DECREF(which);
        return made;
    }
    Py_RETURN_NONE;
}

static int writes(const Signature *signature, int argument)
{
    const char *field = signature->fields;
    for (; argument > 0; argument--)
        field += *field == '(' ? strchr(field, ')') - field + 1 : isdigit(*field) ? 3 : 1;
    return isdigit(*field) && is_written(field);
}

static PyObject *written(PyObject *self, PyObject *made)
{
    (void)self;
    PyObject *which = PyCFunction_Check(made) ? PyCFunction_GetSelf(made) : NULL;
    const Loop *loop = PyCapsule_GetPointer(which, NULL);
    PyObject *told = loop == NULL ? NULL : PyTuple_New(loop->arguments);
    if (told == NULL)
        return NULL;
    for (int argument = 0; argument < loop->arguments; argument++) {
        int found = 0;
        for (int i = 0; i < loop->count; i++)
            found |= writes(&SIGNATURES[loop->first + i], argument);
        PyTuple_SetItem(told, argument, PyBool_FromLong(found));
    }
    return told;
}

static PyObject *runs_here(PyObject *self, PyObject *ignored)
{
    (void)self;
    (void)ignored;
#ifdef __x86_64__
    __builtin_cpu_init();
    return PyBool_FromLong(__builtin_cpu_supports("x86-64-v3")); /* gcc knows it since 11 */
#else
    Py_RETURN_TRUE;
#endif
}

static PyMethodDef FUNCTIONS[] = {
    {"take", take, METH_VARARGS,
     "take(module, name, digest, missing): the loop, None if it is not here in this version."},
    {"written", written, METH_O, "written(loop): of each argument, whether the loop writes to it."},
    {"runs_here", runs_here, METH_NOARGS, "Whether this processor can run the loops."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "ready_loops", NULL, -1, FUNCTIONS, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_ready_loops(void)
{
    import_array();
    return PyModule_Create(&MODULE);
}
