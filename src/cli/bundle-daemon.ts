import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { buildInfo, buildText } from '../base/build-info.ts'
import { systemClock } from '../base/clock.ts'
import { codeOf, failureText } from '../base/errors.ts'
import { networkNamespace } from '../daemon/instance-lock.ts'
import type { HttpServer } from '../http/server.ts'
import { isJson } from '../model/fields.ts'
import { openAdminServer } from '../telemetry/admin-server.ts'
import { type Bundle, jsonIn, readBundle } from './bundle.ts'
import type { Io } from './io.ts'

/** Reads a bundle. Throws an Error with its path. */
export async function openBundle(path: string): Promise<Bundle> {
  try {
    return await readBundle(path)
  } catch (error) {
    if (error instanceof Error && 'code' in error) throw new Error(`cannot read ${path} (${codeOf(error)})`)
    throw new Error(`${path}: ${failureText(error)}`)
  }
}

export function recordIn(bundle: Bundle, name: string): Readonly<Record<string, unknown>> {
  const value = jsonIn(bundle, name)
  return isJson(value) ? value : {}
}

/** Answers for the daemon of the bundle, at a socket that only this process's user can reach, while `use` runs. */
export async function withDaemon(
  bundle: Bundle,
  { io, remedy }: { readonly io: Io; readonly remedy: string },
  use: (socket: string) => Promise<number>,
): Promise<number> {
  const names = ['config', 'snapshot', 'state', 'receipts', 'plan', 'debug'].map(page => `${page}.json`)
  const lacking = names.slice(0, 2).filter(name => jsonIn(bundle, name) === undefined)
  if (lacking.length > 0)
    throw new Error(
      `the bundle has no ${lacking.join(' and no ')}: no daemon answered when it was made; ${remedy}`,
    )
  const config = {
    ...recordIn(bundle, 'config.json'),
    version: buildText(buildInfo()),
    network: await networkNamespace(),
  }
  const folder = await mkdtemp(join(tmpdir(), 'kprobe-replay-'))
  const path = join(folder, 'admin.sock')
  let server: HttpServer | undefined
  try {
    await new Promise<void>((listening, fail) => {
      io.signal.addEventListener('abort', () => fail(new Error('interrupted')), { once: true })
      server = openAdminServer({
        path,
        clock: systemClock,
        report: news => {
          if (news.kind === 'listening') listening()
          if (news.kind === 'failed') fail(news.error)
        },
        config: () => config,
        snapshot: () => jsonIn(bundle, 'snapshot.json'),
        state: () => jsonIn(bundle, 'state.json'),
        receipts: () => jsonIn(bundle, 'receipts.json'),
        plan: () => jsonIn(bundle, 'plan.json'),
        debug: () => jsonIn(bundle, 'debug.json'),
        // No command of replay asks for these.
        services: () => [],
        status: () => ({}),
      })
    })
    return await use(path)
  } finally {
    await server?.close()
    await rm(folder, { recursive: true, force: true })
  }
}
