import { describe, expect, it } from 'vitest'
import { ApiFeed } from '../../../src/api/feed.ts'
import { printFeed, stateLines } from '../../../src/api/print.ts'
import { systemClock } from '../../../src/base/clock.ts'
import { eventually } from '../../support/patience.ts'
import { endpoint, node, service, slice } from '../model/objects.ts'
import { detailed, stateOf, Viewer } from './views.ts'

class Reader {
  readonly viewer = new Viewer()
  readonly feed = new ApiFeed({ clock: systemClock, source: () => undefined })
  readonly stop = new AbortController()
  text = ''
  backlog = 0

  tell(...objects: readonly unknown[]): void {
    this.feed.offer(this.viewer.take(objects.map(detailed)))
  }

  print(what: 'state' | 'states' | 'differences'): Promise<void> {
    const write = (text: string) => {
      this.text += text
    }
    const backlogBytes = () => this.backlog
    const options = { feed: this.feed, clock: systemClock, what, write, backlogBytes }
    return printFeed(options, this.stop.signal)
  }

  /** Lines so far; null for an empty one. */
  get lines(): (object | null)[] {
    return this.text
      .split('\n')
      .slice(0, -1)
      .map(line => (line === '' ? null : JSON.parse(line)))
  }
}

const turn = () => new Promise(done => setTimeout(done, 5))
const WEB = [
  node(),
  service('web'),
  slice('s', 'web', [endpoint('10.1.0.1')], { ports: [{ name: '', port: 80 }] }),
]
const ENDPOINT = { IPs: { V4: ['10.1.0.1'] } }

describe('the state as lines', () => {
  it('is one line a Service, with its endpoints, sorted', () => {
    const state = stateOf([
      ...WEB,
      service('web-a', { clusterIP: '10.96.0.3' }),
      service('app', { clusterIP: '10.96.0.2' }),
      slice('t', 'app', [endpoint('10.1.0.3'), endpoint('10.1.0.2')], { ports: [{ name: '', port: 80 }] }),
    ])
    const lines = [...stateLines(state)].map(line => JSON.parse(line))
    expect(lines.map(({ Service, Endpoints }) => [Service.Name, Endpoints])).toEqual([
      ['app', [{ IPs: { V4: ['10.1.0.2'] } }, { IPs: { V4: ['10.1.0.3'] } }]],
      ['web', [ENDPOINT]],
      ['web-a', undefined],
    ])
    expect([...stateLines(stateOf([]))]).toEqual([])
  })
})

describe('printFeed', () => {
  it('prints one state, once there is one', async () => {
    const reader = new Reader()
    const printing = reader.print('state')
    await turn()
    expect(reader.text).toBe('')
    reader.tell(...WEB)
    await printing
    expect(reader.lines).toMatchObject([{ Service: { Name: 'web' }, Endpoints: [ENDPOINT] }])
    expect(reader.feed.kept).toBe(1)
  })

  it('prints every state, an empty line behind each', async () => {
    const reader = new Reader()
    const printing = reader.print('states')
    reader.tell(...WEB)
    await turn()
    reader.tell(service('web', { ports: [{ port: 81 }] }))
    await turn()
    reader.stop.abort()
    await printing
    expect(reader.lines).toMatchObject([
      { Service: { Ports: [{ Port: 80 }] } },
      null,
      { Service: { Ports: [{ Port: 81 }] } },
      null,
    ])
  })

  it('prints differences as the operations of the stream', async () => {
    const reader = new Reader()
    const printing = reader.print('differences')
    reader.tell(...WEB)
    await turn()
    const move = slice('s', 'web', [endpoint('10.1.0.9')], { ports: [{ name: '', port: 80 }] })
    reader.tell(move)
    await turn()
    reader.stop.abort()
    await printing
    expect(reader.lines).toEqual([
      { Set: { Ref: { Set: 1, Path: 'ns/web' }, Service: expect.objectContaining({ Name: 'web' }) } },
      { Set: { Ref: { Set: 2, Path: 'ns/web/10.1.0.1' }, Endpoint: ENDPOINT } },
      { Sync: {} },
      { Set: { Ref: { Set: 2, Path: 'ns/web/10.1.0.9' }, Endpoint: { IPs: { V4: ['10.1.0.9'] } } } },
      { Delete: { Set: 2, Path: 'ns/web/10.1.0.1' } },
      { Sync: {} },
    ])
    expect(reader.feed.kept).toBe(1)
  })

  it('gives a slow reader the newest state instead of all that it has missed', async () => {
    const reader = new Reader()
    reader.tell(...WEB)
    reader.backlog = 2 << 20
    const printing = reader.print('states')
    await turn()
    for (let port = 81; port < 90; port++) reader.tell(service('web', { ports: [{ port }] }))
    await turn()
    reader.backlog = 0
    await eventually(() => reader.lines.length === 4)
    reader.stop.abort()
    await printing
    expect(reader.lines).toMatchObject([
      { Service: { Ports: [{ Port: 80 }] } },
      null,
      { Service: { Ports: [{ Port: 89 }] } },
      null,
    ])
  })

  it('prints the newest of those that come at once', async () => {
    const reader = new Reader()
    const printing = reader.print('states')
    for (const port of [80, 81, 82]) reader.tell(...WEB, service('web', { ports: [{ port }] }))
    await eventually(() => reader.lines.length === 2)
    reader.stop.abort()
    await printing
    expect(reader.lines).toMatchObject([{ Service: { Ports: [{ Port: 82 }] } }, null])
  })

  it('ends while a reader stands still', async () => {
    const reader = new Reader()
    reader.tell(...WEB)
    reader.backlog = 2 << 20
    const printing = reader.print('states')
    await turn()
    reader.stop.abort()
    await printing
    expect(reader.feed.kept).toBe(1)
  })
})
