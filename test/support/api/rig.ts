import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type * as grpc from '@grpc/grpc-js'
import type { ApiFeed } from '../../../src/api/feed.ts'
import { type ApiServer, type ApiServerOptions, startApiServer } from '../../../src/api/grpc/server.ts'
import { systemClock } from '../../../src/base/clock.ts'
import { patientMs } from '../patience.ts'
import { grpcClient } from './watch-client.ts'

export interface ApiRig {
  readonly server: ApiServer
  readonly folder: string
  /** What the server reported as its own errors. */
  readonly errors: readonly Error[]
  client(): grpc.Client
  end(): Promise<void>
}

/** A server at a unix socket in a folder of its own; `end` stops it and all clients. */
export async function apiRig(feed: ApiFeed, options: Partial<ApiServerOptions> = {}): Promise<ApiRig> {
  const folder = mkdtempSync(join(tmpdir(), 'kprobe-api-'))
  const errors: Error[] = []
  const clients: grpc.Client[] = []
  const server = await startApiServer({
    feed,
    address: `unix://${folder}/api.sock`,
    nodeName: 'node-a',
    clock: systemClock,
    failed: error => errors.push(error),
    ...options,
  })
  return {
    server,
    folder,
    errors,
    client() {
      const client = grpcClient(server.address)
      clients.push(client)
      return client
    },
    async end() {
      for (const client of clients) client.close()
      await server.close()
      rmSync(folder, { recursive: true, force: true })
    },
  }
}

/** Waits until a count stays as it is for 100 ms of an idle machine: whatever can go on has done so. */
export async function quiet(count: () => number): Promise<void> {
  for (let before = -1; before !== count(); ) {
    before = count()
    await new Promise(resolve => setTimeout(resolve, patientMs(100)))
  }
}
