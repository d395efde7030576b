import { type Call, framed, RpcError } from '../../src/api/grpc/rpc.ts'
import { discovery } from '../../src/relay/schema.ts'
import { RELAYED } from '../../src/relay/types.ts'
import type { MessageOf } from '../../src/wire/protobuf/table.ts'

/** A call at a relay without a socket. It keeps what is written and how it ended. */
export class KeptCall implements Call {
  readonly organizations = []
  readonly commonName?: string
  readonly written: Buffer[] = []
  /** Code and text of each end. */
  readonly ended: string[] = []

  constructor(commonName?: string) {
    if (commonName !== undefined) this.commonName = commonName
  }

  get text(): string {
    return Buffer.concat(this.written).toString('latin1')
  }

  write(frames: Buffer): boolean {
    this.written.push(frames)
    return true
  }

  end(code: number, text = ''): void {
    this.ended.push(`${code} ${text}`)
  }

  attempt(step: () => void): void {
    try {
      step()
    } catch (error) {
      if (!(error instanceof RpcError)) throw error
      this.end(error.code, error.message)
    }
  }
}

interface Said extends MessageOf<typeof discovery.DeltaDiscoveryRequest> {
  /** Of the node. */
  readonly id?: string
  readonly metadata?: Readonly<Record<string, string>>
}

/** A request of incremental xDS as a relay gets it, for Services unless it says otherwise. */
export function requestOf(said: Said = {}): Buffer {
  return framedRequest(said).subarray(5)
}

/** The same as a client sends it. */
export function framedRequest({ id = 'node', metadata = {}, ...request }: Said): Buffer {
  const fields = Object.entries(metadata).map(([key, value]) => ({ key, value: { string_value: value } }))
  const node = { id, metadata: { fields } }
  return framed(discovery.DeltaDiscoveryRequest, {
    node,
    type_url: RELAYED.Service.typeUrl,
    ...request,
  })
}
