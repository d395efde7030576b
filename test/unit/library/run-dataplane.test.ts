import { Writable } from 'node:stream'
import { describe, expect, onTestFinished, test } from 'vitest'
import { createLog } from '../../../src/base/log.ts'
import { runDataplane } from '../../../src/library/index.ts'
import { isRefusal } from '../../../src/model/fields.ts'
import { parseObject } from '../../../src/model/parse.ts'
import type { Source, SourceHandlers } from '../../../src/source/source.ts'
import { FakePlane } from '../../support/fake-plane.ts'

/** A source that tells what the test gives it. */
class GivenSource implements Source {
  handlers: SourceHandlers | undefined
  stopped = false
  readonly status = { missing: [], heardMs: undefined, trouble: undefined }

  async start(handlers: SourceHandlers): Promise<void> {
    this.handlers = handlers
  }

  async tell(...objects: readonly object[]): Promise<void> {
    const events = objects.flatMap(object => {
      const event = parseObject(object)
      return event === undefined || isRefusal(event) ? [] : [event]
    })
    await this.handlers?.events(events)
  }

  async stop(): Promise<void> {
    this.stopped = true
  }
}

function service(name: string, over: object = {}): object {
  const spec = {
    clusterIP: '10.96.0.1',
    clusterIPs: ['10.96.0.1'],
    ipFamilies: ['IPv4'],
    ports: [{ port: 80 }],
  }
  return {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { namespace: 'ns', name },
    spec: { ...spec, ...over },
  }
}

function slice(name: string, nodeNames: readonly string[]): object {
  const endpoints = nodeNames.map((nodeName, index) => ({ addresses: [`10.1.0.${index + 1}`], nodeName }))
  return {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: { namespace: 'ns', name, labels: { 'kubernetes.io/service-name': name } },
    addressType: 'IPv4',
    endpoints,
    ports: [{ name: '', port: 80 }],
  }
}

/** No two planes of a network namespace have the same name. */
class NamedPlane extends FakePlane {
  override readonly name = `test-run-${process.pid}-${Math.random()}`
  /** Of each endpoint that was rendered last: whether it is on this node. */
  isLocal: readonly boolean[] = []

  override render(...[table, options]: Parameters<FakePlane['render']>): ReturnType<FakePlane['render']> {
    const ports = table.services.values().flatMap(its => its.ports)
    this.isLocal = ports.flatMap(({ cluster }) => cluster.map(({ local }) => local))
    return super.render(table, options)
  }
}

function start(over: { readonly once?: boolean; readonly serviceProxyName?: string } = {}) {
  const plane = new NamedPlane()
  const source = new GivenSource()
  const stop = new AbortController()
  const lines: string[] = []
  const destination = new Writable({ write: (chunk, _, done) => done(void lines.push(String(chunk))) })
  const log = createLog({ format: 'text', verbosity: 0, destination })
  const options = { source, plane, log, nodeName: 'Node', minIntervalMs: 1, signal: stop.signal, ...over }
  const ended = runDataplane(options)
  ended.catch(() => undefined)
  onTestFinished(async () => {
    stop.abort()
    await ended.catch(() => undefined)
  })
  return { plane, source, stop, ended, lines, options }
}

async function started(source: GivenSource): Promise<void> {
  await expect.poll(() => source.handlers).toBeDefined()
}

describe('runDataplane', () => {
  test('programs nothing before the source has delivered everything, and then each change', async () => {
    const { plane, source, stop, ended, lines } = start()
    await started(source)
    await source.tell(service('a'))
    expect(plane.attempts).toBe(0)
    source.handlers?.synced()
    await expect.poll(() => [...plane.kernel.keys()]).toEqual(['ns/a'])
    expect(lines.join('')).toContain('sync complete')
    await source.tell(service('b', { clusterIP: '10.96.0.2', clusterIPs: ['10.96.0.2'] }))
    await expect.poll(() => [...plane.kernel.keys()]).toEqual(['ns/a', 'ns/b'])
    stop.abort()
    await ended
    expect(source.stopped).toBe(true)
    expect([...plane.kernel.keys()]).toEqual(['ns/a', 'ns/b'])
  })

  test('serves the Services of its name alone', async () => {
    const { plane, source } = start({ serviceProxyName: 'mine' })
    await started(source)
    const label = { 'service.kubernetes.io/service-proxy-name': 'mine' }
    const own = { ...service('own'), metadata: { namespace: 'ns', name: 'own', labels: label } }
    await source.tell(service('other', { clusterIP: '10.96.0.2', clusterIPs: ['10.96.0.2'] }), own)
    source.handlers?.synced()
    await expect.poll(() => [...plane.kernel.keys()]).toEqual(['ns/own'])
  })

  test('knows its node by the name that the Node object has, however it is written', async () => {
    const { plane, source, options } = start()
    expect(options.nodeName).toBe('Node')
    await started(source)
    await source.tell(service('a'), slice('a', ['node', 'other']))
    source.handlers?.synced()
    await expect.poll(() => plane.isLocal).toEqual([true, false])
  })

  test('ends after the first sync with `once`', async () => {
    const { plane, source, ended } = start({ once: true })
    await started(source)
    source.handlers?.synced()
    await ended
    expect(source.stopped).toBe(true)
    expect(plane.observations).toBeGreaterThan(0)
  })

  test.each([
    ['three passes fail', new Error('the kernel is gone'), 3],
    [
      'a privilege is missing, which does not come by waiting',
      new Error('listing failed', { cause: Object.assign(new Error('no'), { code: 'EPERM' }) }),
      1,
    ],
  ])('rejects with `once` when %s', async (_, error, failures) => {
    const { plane, source, ended, lines } = start({ once: true })
    plane.beforeObserve = () => {
      throw error
    }
    await started(source)
    await source.tell(service('a'))
    source.handlers?.synced()
    await expect(ended).rejects.toThrow(error.message)
    expect(lines.filter(line => line.includes('sync failed'))).toHaveLength(failures)
    expect(source.stopped).toBe(true)
  })

  test('rejects when the source cannot start, and leaves no lock', async () => {
    const { options, stop, ended } = start()
    stop.abort()
    await ended
    const source: Source = {
      ...options.source,
      start: () => Promise.reject(new Error('no such file')),
      stop: async () => undefined,
      status: options.source.status,
    }
    await expect(runDataplane({ ...options, source, signal: new AbortController().signal })).rejects.toThrow(
      'no such file',
    )
    await runDataplane({ ...options, source: new GivenSource(), signal: AbortSignal.abort() })
  })

  test('a second one with a plane of the same name is refused while the first runs', async () => {
    const { source, options } = start()
    await started(source)
    await expect(runDataplane(options)).rejects.toThrow(
      `pid ${process.pid}) runs the plane ${options.plane.name}`,
    )
  })

  test('says what is refused, by the source and by the kernel, and what others changed', async () => {
    const { plane, source, lines } = start()
    await started(source)
    plane.poisoned.add('ns/bad')
    const bad = service('bad', { clusterIP: '10.96.0.3', clusterIPs: ['10.96.0.3'] })
    const odd = service('odd', {
      clusterIP: '10.96.0.4',
      clusterIPs: ['10.96.0.4'],
      externalIPs: ['127.0.0.1'],
    })
    await source.tell(bad, odd)
    const refusal = { object: 'Service ns/x', field: 'metadata', value: 'nothing', reason: 'is not there' }
    source.handlers?.refusals([{ location: 'objects.yaml', refusal }])
    source.handlers?.problem({ kind: 'failed', location: 'other.yaml', text: 'cannot be read' })
    source.handlers?.synced()
    await expect.poll(() => [...plane.kernel.keys()]).toEqual(['ns/odd'])
    plane.tamper(new Map())
    await expect.poll(() => [...plane.kernel.keys()]).toEqual(['ns/odd'])
    const said = lines.join('')
    for (const words of [
      'location=objects.yaml',
      'cannot be read location=other.yaml',
      'spec.externalIPs',
      'the kernel rejects the Service',
    ])
      expect(said).toContain(words)
    await expect.poll(() => lines.join('')).toContain('repaired changes of another program')
  })
})

describe('without a signal of its own', () => {
  test('SIGTERM ends it, and its listeners are removed', async () => {
    const { options, stop, ended } = start()
    stop.abort()
    await ended
    const before = process.listenerCount('SIGTERM')
    const { signal: _, ...rest } = options
    const source = new GivenSource()
    const running = runDataplane({ ...rest, source })
    await started(source)
    expect(process.listenerCount('SIGTERM')).toBe(before + 1)
    process.emit('SIGTERM')
    await running
    expect(source.stopped).toBe(true)
    expect(process.listenerCount('SIGTERM')).toBe(before)
  })
})
