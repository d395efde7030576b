import { expect, it } from 'vitest'
import { mapLayout } from '../../../src/ui/map-layout.ts'

const talk = (from: string, to: string, connections: number) => ({ from, to, connections })

it('places the largest first, and links within their nodes', () => {
  const { left, right, links, height } = mapLayout(
    [talk('a', 'x', 6), talk('a', 'y', 3), talk('b', 'y', 1)],
    10,
  )
  expect(left.map(({ name, connections }) => `${name} ${connections}`)).toEqual(['a 9', 'b 1'])
  expect(right.map(({ name }) => name)).toEqual(['x', 'y'])
  const lines = links.map(({ from, to, connections }) => `${from.name} to ${to.name}: ${connections}`)
  expect(lines).toEqual(['a to x: 6', 'a to y: 3', 'b to y: 1'])
  for (const { from, to, fromY, toY, width } of links)
    for (const [node, y] of [
      [from, fromY],
      [to, toY],
    ] as const) {
      expect(y - width / 2).toBeGreaterThanOrEqual(node.y)
      expect(y + width / 2).toBeLessThanOrEqual(node.y + node.height)
    }
  expect(height).toBeLessThan(400)
})

it('stays readable with 500 names: the smallest are one node, which stands for all their connections', () => {
  const talks = Array.from({ length: 500 }, (_, n) => talk(`ns-${n % 40}`, `svc-${n}`, 1 + (n % 7)))
  const { left, right, links, height } = mapLayout(talks, 16)
  expect([left.length, right.length]).toEqual([16, 16])
  expect(right.at(-1)).toMatchObject({ name: '485 others', others: 485 })
  const sum = (all: readonly { readonly connections: number }[]) =>
    all.reduce((total, { connections }) => total + connections, 0)
  expect(sum(right)).toBe(sum(talks))
  expect(sum(links)).toBe(sum(talks))
  expect(height).toBeLessThan(700)
  // A name has a line of its own.
  for (const node of [...left, ...right]) expect(node.height).toBeGreaterThanOrEqual(22)
})

it('is empty without connections', () => {
  expect(mapLayout([], 16)).toEqual({ left: [], right: [], links: [], height: 0 })
})
