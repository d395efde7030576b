import {
  type Call,
  type CallHandler,
  INVALID_ARGUMENT,
  PERMISSION_DENIED,
  RpcError,
} from '../api/grpc/rpc.ts'
import { localv1 } from '../api/schema.ts'
import { isDnsSubdomain } from '../model/fields.ts'
import { decodeMessage } from '../wire/protobuf/decoder.ts'

export interface NodeSetsOptions {
  /** Begins a stream of `localv1.Sets/Watch` for a node. Throws RpcError where there is no room. */
  readonly watch: (node: string, call: Call) => CallHandler
  /** The Node that this client is; undefined for one that is none. */
  readonly nodeOf: (call: Call) => string | undefined
  /** The client may ask for any node. */
  readonly isTrusted: (call: Call) => boolean
}

/** `localv1.Sets/Watch` for the node that the first request of a stream names, or else for that of the client. */
export function nodeSets({ watch, nodeOf, isTrusted }: NodeSetsOptions): (call: Call) => CallHandler {
  return call => {
    let handler: CallHandler | undefined
    const begin = (bytes: Buffer): CallHandler => {
      const own = nodeOf(call) ?? ''
      const { NodeName: asked = '' } = decodeMessage(localv1.WatchReq, bytes)
      const node = asked === '' ? own : asked.toLowerCase()
      if (!isDnsSubdomain(node))
        throw new RpcError(
          INVALID_ARGUMENT,
          `NodeName ${JSON.stringify(node.slice(0, 253))} is no name of a node`,
        )
      if (node !== own && !isTrusted(call))
        throw new RpcError(
          PERMISSION_DENIED,
          `the client may ask for node ${JSON.stringify(own)} only: NodeName ${JSON.stringify(node)}; --trusted-users`,
        )
      return watch(node, call)
    }
    return {
      message(bytes) {
        handler ??= begin(bytes)
        handler.message(bytes)
      },
      ended: () => (handler === undefined ? call.end(INVALID_ARGUMENT, 'no request') : handler.ended()),
      drained: () => handler?.drained?.(),
      closed: () => handler?.closed?.(),
    }
  }
}
