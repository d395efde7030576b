import type { Definitions } from './descriptors.ts'
import { bytesField, messageField, numberField, readFields } from './protobuf.ts'
import { type Call, type CallHandler, framed, NOT_FOUND, OK, RESOURCE_EXHAUSTED, RpcError } from './rpc.ts'

/** Fields of ServerReflectionRequest. */
const FILE_BY_FILENAME = 3
const FILE_CONTAINING_SYMBOL = 4
const ALL_EXTENSION_NUMBERS = 6
const LIST_SERVICES = 7

/** Requests that wait for a client which does not read. */
const WAITING_MAX = 64

/** `ServerReflection/ServerReflectionInfo`, which is the same in v1 and v1alpha. */
export function reflectionMethod(its: Definitions): (call: Call) => CallHandler {
  return call => {
    const waiting: Buffer[] = []
    let isFull = false
    let hasEnded = false
    const answerAll = (): void => {
      for (let request = isFull ? undefined : waiting.shift(); request !== undefined; ) {
        isFull = !call.write(framed(answer(its, request)))
        request = isFull ? undefined : waiting.shift()
      }
      if (hasEnded && waiting.length === 0) call.end(OK)
    }
    return {
      message(bytes) {
        if (waiting.length >= WAITING_MAX)
          throw new RpcError(RESOURCE_EXHAUSTED, `${WAITING_MAX} requests already wait for answers`)
        waiting.push(Buffer.from(bytes))
        answerAll()
      },
      ended() {
        hasEnded = true
        answerAll()
      },
      drained() {
        isFull = false
        answerAll()
      },
    }
  }
}

function answer(its: Definitions, request: Buffer): Buffer {
  const original = bytesField(2, request)
  for (const { number, value } of readFields(request)) {
    if (typeof value === 'number') continue
    const text = value.toString('utf8')
    if (number === LIST_SERVICES)
      return Buffer.concat([
        original,
        messageField(
          6,
          its.services.map(name => messageField(1, [bytesField(1, name)])),
        ),
      ])
    if (number === FILE_BY_FILENAME) return Buffer.concat([original, fileOr(its.byFileName.get(text), text)])
    if (number === FILE_CONTAINING_SYMBOL)
      return Buffer.concat([original, fileOr(its.bySymbol.get(text.replace(/^\./, '')), text)])
    if (number === ALL_EXTENSION_NUMBERS && its.bySymbol.has(text.replace(/^\./, '')))
      return Buffer.concat([original, messageField(5, [bytesField(1, text)])])
  }
  return Buffer.concat([original, failure('not found')])
}

function fileOr(file: Buffer | undefined, text: string): Buffer {
  if (file === undefined) return failure(`there is no ${JSON.stringify(text.slice(0, 200))}`)
  return messageField(4, [bytesField(1, file)])
}

function failure(message: string): Buffer {
  return messageField(7, [numberField(1, NOT_FOUND), bytesField(2, message)])
}
