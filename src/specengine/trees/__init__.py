"""Draft trees and their builders. Pure numpy."""
